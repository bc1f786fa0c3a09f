package e2e

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// dynamicPorts: replicas of one program share machines, each on a number of its own from the machine's range, which its
// health check, its environment and its neighbours agree on. What holds a number from outside is not taken for the pod, an
// upgrade in place keeps the numbers, and where none is left the rest is said to be missing.
func dynamicPorts(e *env) {
	const first, last = 21000, 21002
	e.startConsul("")
	for n := 1; n <= 2; n++ {
		e.preparer(n, "--port-min", strconv.Itoa(first), "--port-max", strconv.Itoa(last))
	}
	var foreign []net.Listener
	for port := first; port <= last; port++ {
		l, err := net.Listen("tcp", net.JoinHostPort(e.address(2), strconv.Itoa(port)))
		if err != nil {
			e.t.Fatal(err)
		}
		defer l.Close()
		foreign = append(foreign, l)
	}
	e.farm("f1", "")
	h := e.hello(4, nil)
	h.Port = 0
	e.apply(h)
	e.podsSay("something else on the node holds " + e.address(2) + ":21")
	for _, l := range foreign {
		_ = l.Close()
	}
	e.applied(h)
	before := e.answering(4, "version \n")

	h.Env = map[string]string{"HELLO_VERSION": "2"}
	e.applied(h)
	for where, who := range e.answering(4, "version 2\n") {
		if before[where] != who {
			e.t.Errorf("%s answers at %s after the upgrade, before it was %q", who, where, before[where])
		}
	}

	h.Replicas = 2*(last-first+1) + 1
	e.apply(h)
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, e.rcID("hello"))
		if err == nil && (st.Value.Available != h.Replicas-1 || !st.Value.Is(rc.InsufficientNodes)) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return err
	})
	e.answering(h.Replicas-1, "version 2\n")
}

// answering waits until so many replicas answer where their placements say, each as itself, and returns who answers where.
func (e *env) answering(n int, text string) map[string]string {
	e.t.Helper()
	var found map[string]string
	e.within(limit, func() error {
		found = map[string]string{}
		for id, rec := range e.placements(e.rcID("hello")) {
			p := rec.Value
			addr := net.JoinHostPort(e.address(e.nodeNumber(p.Node)), strconv.Itoa(p.Ports["http"]))
			page, err := cluster.Get(e.t.Context(), "http://"+addr+"/")
			if err != nil {
				return err
			}
			want := fmt.Sprintf("hello from hello-main-%d on %s,", p.Identity.Index, p.Node)
			if !strings.HasPrefix(page, want) || !strings.Contains(page+"\n", text) {
				return fmt.Errorf("%s answers %q, want %q and %q", addr, page, want, text)
			}
			found[addr] = id
		}
		if len(found) != n {
			return fmt.Errorf("%d replicas answer: %v; want %d", len(found), found, n)
		}
		return nil
	})
	return found
}
