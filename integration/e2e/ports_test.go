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

// dynamicPorts: replicas of one program share machines. Each replica has its own port number from the machine's range.
// Its health check, its environment and the other replicas use this number. If another program on a machine uses a
// number, no pod gets the number there, and no pod with this static port is placed there. If the machine's record lacks
// a number that is in use, the conflict is found when the pod starts. An upgrade in place keeps the numbers. If no
// number is left, the status reports that pods are missing.
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
	// A node removes a number from its record after machine.LeaveAfter looks that did not find it. There are at least
	// 15 s between two looks.
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

func (e *env) listen(n, port int) net.Listener {
	e.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(e.address(n), strconv.Itoa(port)))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = l.Close() })
	return l
}

// tellsPorts needs a farm, which must raise the version gate first. A busy machine notices ports late.
func (e *env) tellsPorts(nodeName string, ports ...int) {
	e.t.Helper()
	e.within(limit, func() error {
		rec, err := e.store.Node(e.t.Context(), nodeName)
		for _, port := range ports {
			if err == nil && !slices.Contains(rec.Value.PortsInUse, port) {
				err = fmt.Errorf("the record of %s says that %d are in use, without %d",
					nodeName, rec.Value.PortsInUse, port)
			}
		}
		return err
	})
}

// lacksPorts waits until the pods on one node are placed, and the status reports that ports are missing for the others.
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
		if text := fmt.Sprint(st.Value.Conditions); st.Value.Placed != placed || !st.Value.Is(rc.InsufficientNodes) ||
			!strings.Contains(text, "ports: ") {
			return fmt.Errorf("status %+v", st.Value)
		}
		return nil
	})
}

// unlisted places a pod on a port of another process that the node's record does not list, because the kernel gives
// such numbers to clients (ephemeral ports). So the node reports that the port is taken.
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

// answering waits until n replicas answer at their placements' addresses, and returns them by address.
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
