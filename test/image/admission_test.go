package image_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/api/pod"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	internal "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// create does what the API server does with a DaemonSet that is posted to it: reads it strictly, gives it its
// defaults, validates it. The warnings are what kubectl would print.
func create(manifest []byte) (warnings []string, err error) {
	ctx := request.WithNamespace(request.WithRequestInfo(context.Background(), &request.RequestInfo{
		APIGroup: "apps", APIVersion: "v1", Resource: "daemonsets"}), "kube-system")
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	object, err := runtime.Decode(strict, manifest)
	if err != nil {
		return nil, err
	}
	fields, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	rest.FillObjectMetaSystemFields(fields)
	if err := rest.BeforeCreate(daemonset.Strategy, ctx, object); err != nil {
		return nil, err
	}
	return daemonset.Strategy.WarningsOnCreate(ctx, object), nil
}

func encoded(v any) []byte {
	GinkgoHelper()
	data, err := yaml.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	return data
}

// forbidden are the reasons for which Pod Security refuses a pod in a namespace of a level.
func forbidden(level api.Level, spec core.PodSpec) []string {
	GinkgoHelper()
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	Expect(err).NotTo(HaveOccurred())
	return policy.AggregateCheckResults(checks.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()},
		&v1.ObjectMeta{}, &spec)).ForbiddenReasons
}

var _ = Describe("the API server's own code", func() {
	DescribeTable("takes the DaemonSet, and has no warning:", func(manifest func() []byte) {
		Expect(create(manifest())).To(BeEmpty())
	},
		Entry("of the file", func() []byte { return contents("../../deploy/daemonset.yaml") }),
		Entry("of watch", func() []byte { return contents("../../deploy/watch.yaml") }),
		Entry("of watch in the chart", func() []byte { return chart("watch.yaml", everyValue) }),
		Entry("of the chart", func() []byte { return chart("daemonset.yaml", "{}") }),
		Entry("of the chart with each value", func() []byte { return chart("daemonset.yaml", everyValue) }),
		Entry("of the chart for one plugin", func() []byte { return chart("daemonset.yaml", "only: [bridge]") }),
	)

	It("refuses a DaemonSet that breaks a rule which its type does not show", func() {
		broken := daemonSet()
		broken.Spec.Template.Spec.Containers[0].VolumeMounts[0].Name = "other"
		Expect(create(encoded(broken))).Error().To(MatchError(
			ContainSubstring(`volumeMounts[0].name: Not found: "other"`)))
	})

	It("takes the static pod as a kubelet does", func() {
		object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), encoded(talosPod()))
		Expect(err).NotTo(HaveOccurred())
		p := object.(*internal.Pod)
		Expect(validation.ValidatePodCreate(p, pod.GetValidationOptionsFromPodSpecAndMeta(&p.Spec, nil, &p.ObjectMeta,
			nil))).To(BeEmpty())
		Expect(pod.GetWarningsForPod(context.Background(), p, nil)).To(BeEmpty())
		_, reference, err := pod.HasAPIObjectReference(p)
		Expect(err).NotTo(HaveOccurred())
		Expect(reference).To(BeEmpty(), "there may be no API server")
	})

	It("lets the pods of watch into a namespace of the level privileged only", func() {
		spec := watch().Spec.Template.Spec
		Expect(forbidden(api.LevelPrivileged, spec)).To(BeEmpty())
		Expect(forbidden(api.LevelBaseline, spec)).To(ConsistOf("host namespaces", "hostPath volumes", "seLinuxOptions",
			"non-default capabilities", "forbidden AppArmor profile"))
	})

	DescribeTable("lets the pods into a namespace of the level privileged only, for the reasons of docs/install.md:",
		func(of func() core.PodSpec) {
			Expect(forbidden(api.LevelPrivileged, of())).To(BeEmpty())
			Expect(forbidden(api.LevelBaseline, of())).To(ConsistOf("host namespaces", "hostPath volumes",
				"seLinuxOptions"))
		},
		Entry("the DaemonSet's", func() core.PodSpec { return daemonSet().Spec.Template.Spec }),
		Entry("the static pod", func() core.PodSpec { return talosPod().Spec }),
	)
})
