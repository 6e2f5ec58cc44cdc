package kube_test

import (
	"os"
	"strings"

	"github.com/google/cel-go/cel"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// policy is what is evaluated of deploy/cluster-local/policy.yaml.
type policy struct {
	Spec struct {
		MatchConditions []struct{ Expression string }
		Variables       []struct{ Name, Expression string }
		Validations     []struct{ Expression, MessageExpression string }
	}
}

// decide does as the API server does with the policy and a request.
func (p policy) decide(request, oldObject, new object) (denied string) {
	GinkgoHelper()
	env := nstest.Must(cel.NewEnv(cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType)))
	variables := object{}
	value := func(expression string) any {
		GinkgoHelper()
		tree, issues := env.Compile(expression)
		Expect(issues.Err()).NotTo(HaveOccurred(), expression)
		out, _, err := nstest.Must(env.Program(tree)).Eval(object{"request": request, "oldObject": oldObject,
			"object": new, "variables": variables})
		Expect(err).NotTo(HaveOccurred(), expression)
		return out.Value()
	}
	for _, c := range p.Spec.MatchConditions {
		if value(c.Expression) == false {
			return ""
		}
	}
	for _, v := range p.Spec.Variables {
		variables[v.Name] = value(v.Expression)
	}
	for _, v := range p.Spec.Validations {
		if value(v.Expression) != true {
			return value(v.MessageExpression).(string)
		}
	}
	return ""
}

var _ = DescribeTable("the policy", Label("cluster-policy"), func(user object, operation, node, want string) {
	manifest, _, _ := strings.Cut(string(nstest.Must(os.ReadFile("../../deploy/cluster-local/policy.yaml"))), "\n---\n")
	var p policy
	Expect(yaml.Unmarshal([]byte(manifest), &p)).To(Succeed())
	Expect(p.Spec.Validations).To(HaveLen(1))
	lease := object{"spec": object{"node": node}}
	if operation == "DELETE" {
		Expect(p.decide(object{"operation": operation, "userInfo": user}, lease, nil)).To(Equal(want))
		return
	}
	Expect(p.decide(object{"operation": operation, "userInfo": user}, nil, lease)).To(Equal(want))
},
	Entry("has a kubelet make its own", kubelet, "CREATE", "node-a", ""),
	Entry("has a kubelet delete its own", kubelet, "DELETE", "node-a", ""),
	Entry("has a kubelet make no other's", kubelet, "CREATE", "node-b",
		"system:node:node-a makes and deletes no leases of node node-b"),
	Entry("has a kubelet delete no other's", kubelet, "DELETE", "node-b",
		"system:node:node-a makes and deletes no leases of node node-b"),
	Entry("has a token of a node's pod make its own", token, "CREATE", "node-a", ""),
	Entry("has a token of a node's pod delete no other's", token, "DELETE", "node-b",
		"system:node:node-a makes and deletes no leases of node node-b"),
	Entry("has a token of no pod make none", object{"username": token["username"], "groups": token["groups"]}, "CREATE",
		"node-a", "a token of no node makes and deletes no leases of node node-a"),
	Entry("says nothing of a CronJob's token", object{"username": "system:serviceaccount:kube-system:reclaim",
		"groups": token["groups"], "extra": token["extra"]}, "DELETE", "node-b", ""),
	Entry("says nothing of people", object{"username": "admin", "groups": []string{"system:masters"}}, "DELETE",
		"node-b", ""))

var (
	kubelet = object{"username": "system:node:node-a", "groups": []string{"system:nodes", "system:authenticated"}}
	token   = object{"username": "system:serviceaccount:kube-system:hawser-cluster-local",
		"groups": []string{"system:serviceaccounts"},
		"extra":  object{"authentication.kubernetes.io/node-name": []string{"node-a"}}}
)
