package runtimes_test

import (
	"context"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/test/pods"
)

// check runs CHECK of a pod, with what the runtime's libcni remembers of its ADD: a
// job that the runtimes here leave to others. The namespace is named as they name it.
func (m *machine) check(conflist, id string, pod pods.Pod) error {
	GinkgoHelper()
	list, err := libcni.ConfListFromBytes([]byte(conflist))
	Expect(err).NotTo(HaveOccurred())
	m.Do(func() {
		cni := libcni.NewCNIConfig([]string{m.plugins}, nil)
		var attachments []*libcni.NetworkAttachment
		attachments, err = cni.GetCachedAttachments(id)
		Expect(err).NotTo(HaveOccurred())
		checked := 0
		for _, a := range attachments {
			if a.Network != list.Name || err != nil {
				continue
			}
			checked++
			err = cni.CheckNetworkList(context.Background(), list, &libcni.RuntimeConf{
				ContainerID: a.ContainerID, NetNS: "/var" +
					pod.Path, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs})
		}
		Expect(checked).NotTo(BeZero(), "nothing cached for "+id)
	})
	return err
}
