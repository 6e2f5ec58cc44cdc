package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
)

// go-cni and ocicni call plugins from threads of their own, so they run in a process
// that is on the host as a whole: this test binary, with these in its environment.
const (
	libraryEnv = "HAWSER_CLIENT"
	pluginsEnv = "HAWSER_CLIENT_PLUGINS"
	netconfEnv = "HAWSER_CLIENT_NETCONF"
)

// order is what a client is asked for, on standard input.
type order struct {
	Verbs []string // add, check, del, status, gc; in this order
	Pods  []pod    // all at once; the valid ones for gc
}

type pod struct {
	ID, Netns string
	Ports     []port
	IfName    string         // "eth0" when empty; only libcni knows another
	More      map[string]any // of libcni's CapabilityArgs
}

// port is written as the convention for portMappings wants it.
type port struct {
	Host      int32  `json:"hostPort"`
	Container int32  `json:"containerPort"`
	Protocol  string `json:"protocol"`
	IP        string `json:"hostIP,omitempty"`
}

// answer is what it says, on standard output.
type answer struct {
	Addrs map[string][]string // of pods by ID
	Error string              // empty when all went well
}

func client(name string) int {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	a := answer{Addrs: map[string][]string{}}
	l, err := open(name, os.Getenv(netconfEnv), os.Getenv(pluginsEnv))
	for _, verb := range o.Verbs {
		if err != nil {
			break
		}
		err = obey(l, verb, o.Pods, a.Addrs)
	}
	if err != nil {
		a.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		return 2
	}
	return 0
}

func obey(l library, verb string, pods []pod, addrs map[string][]string) error {
	ctx := context.Background()
	switch verb {
	case "status":
		return l.status(ctx)
	case "gc":
		return l.gc(ctx, pods)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := make([]error, len(pods))
	for i, p := range pods {
		wg.Go(func() {
			switch verb {
			case "add":
				addr, err := l.add(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				addrs[p.ID], errs[i] = addr, err
			case "check":
				errs[i] = l.check(ctx, p)
			case "del":
				errs[i] = l.del(ctx, p)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
