package e2e

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// dynamicPorts: replicas of one program share machines, each on a number of its own from the machine's range, which its
// health check, its environment and its neighbours agree on. Numbers that something else on a machine holds are not given away, and no pod with such a static port is
// placed there; what the machine's record does not tell is found when the pod starts. An upgrade in place keeps the numbers, and where none is left the
// rest is said to be missing.
func dynamicPorts(e *env) {
	const first, last, static = 21000, 21002, 21500
	e.startConsul("")
	var foreign []net.Listener
	for port := first; port <= last; port++ {
		foreign = append(foreign, e.listen(2, port))
	}
	foreign = append(foreign, e.listen(1, static))
	for n := 1; n <= 2; n++ {
		e.preparer(n, "--port-min", strconv.Itoa(first), "--port-max", strconv.Itoa(last))
	}
	e.farm("f1", "")
	e.tellsPorts("n1", static)
	e.tellsPorts("n2", first, first+1, last)
	h := e.hello(4, nil)
	h.Port = 0
	e.apply(h)
	other := e.hello(2, nil)
	other.Name, other.Port = "static", static
	e.apply(other)
	e.lacksPorts("hello", "n1", 3)
	e.lacksPorts("static", "n2", 1)
	for _, l := range foreign {
		_ = l.Close()
	}
	// A node forgets a number after machine.LeaveAfter looks without it, which are 15 s apart, and more on a busy machine.
	e.rcctl(cluster.HelloSpec(other), "apply", "-f", "-", "--wait", "--timeout", (limit + time.Minute).String())
	e.unlisted(h)
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

// listen holds a port on the address of a node.
func (e *env) listen(n, port int) net.Listener {
	e.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(e.address(n), strconv.Itoa(port)))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = l.Close() })
	return l
}

// tellsPorts waits until a node's record says that something holds ports there. That needs a farm, which raises the version
// gate, and a busy machine finds it out late.
func (e *env) tellsPorts(nodeName string, ports ...int) {
	e.t.Helper()
	e.within(limit, func() error {
		rec, err := e.store.Node(e.t.Context(), nodeName)
		for _, port := range ports {
			if err == nil && !slices.Contains(rec.Value.PortsInUse, port) {
				err = fmt.Errorf("the record of %s says that %d are in use, without %d", nodeName, rec.Value.PortsInUse, port)
			}
		}
		return err
	})
}

// lacksPorts waits until all pods of a controller that have a node are on one, and the others are said to have none because of ports.
func (e *env) lacksPorts(name, nodeName string, placed int) {
	e.t.Helper()
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, e.rcID(name))
		if err != nil {
			return err
		}
		for _, rec := range e.placements(e.rcID(name)) {
			if rec.Value.Node != nodeName {
				return fmt.Errorf("%s is on %s, whose ports are in use", name, rec.Value.Node)
			}
		}
		if text := fmt.Sprint(st.Value.Conditions); st.Value.Placed != placed || !st.Value.Is(rc.InsufficientNodes) || !strings.Contains(text, "ports: ") {
			return fmt.Errorf("status %+v", st.Value)
		}
		return nil
	})
}

// unlisted has a pod meet a port that something holds and the node's record does not tell: one of the kernel's ephemeral numbers.
func (e *env) unlisted(h cluster.Hello) {
	e.t.Helper()
	l := e.listen(1, 0)
	port := l.Addr().(*net.TCPAddr).Port
	beside := e.listen(2, port)
	h.Name, h.Port, h.Replicas = "unlisted", port, 1
	e.apply(h)
	e.podsSay(fmt.Sprintf("process %d (", os.Getpid()), "holds 127.")
	_, _ = l.Close(), beside.Close()
	e.applied(h)
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
