package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// door is a proxy of Consul that first refuses all requests, and later lets some wait.
type door struct {
	addr string

	mu   sync.Mutex
	open bool
	late string        // requests whose path contains it wait; empty: none
	free chan struct{} // closed when the late requests may continue
}

func newDoor(e *env) *door {
	d := &door{free: make(chan struct{})}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	reverse := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: e.consul.Addr})
	reverse.Transport = transport
	reverse.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		open, waits := d.open, d.late != "" && strings.Contains(r.URL.Path, d.late)
		d.mu.Unlock()
		if !open {
			panic(http.ErrAbortHandler) // as if no process listened
		}
		if waits {
			select {
			case <-d.free:
			case <-r.Context().Done():
				return
			}
		}
		reverse.ServeHTTP(w, r)
	}))
	d.addr = server.Listener.Addr().String()
	e.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		transport.CloseIdleConnections()
	})
	return d
}

// unlock lets requests pass, except those whose path contains late, which wait.
func (d *door) unlock(late string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open, d.late = true, late
}

// There is one such line for each start.
var listens = regexp.MustCompile(`debug server listens.*address="?([0-9.]+:[0-9]+)`)

func (d *daemon) debugAddr() string {
	found := listens.FindAllStringSubmatch(d.logText(), -1)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1][1]
}

func (d *daemon) asked(path string) (status int, body string, err error) {
	address := d.debugAddr()
	if address == "" {
		return 0, "", fmt.Errorf("%s has not said where its debug server listens", d.name)
	}
	req, err := http.NewRequestWithContext(d.e.t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// ready also waits until the daemon is alive.
func (d *daemon) ready(want int, why string) {
	d.e.t.Helper()
	d.e.within(limit, func() error {
		status, body, err := d.asked("/readyz")
		if err != nil || status != want || !strings.Contains(body, why) {
			return fmt.Errorf("%s answers %d %q to /readyz, want %d %q; %w", d.name, status, body, want, why, err)
		}
		return nil
	})
	d.e.within(limit, func() error { // a lost connection is no answer: ask again
		status, body, err := d.asked("/healthz")
		if err == nil && status != http.StatusOK {
			d.e.t.Errorf("%s answers %d %q to /healthz", d.name, status, body)
		}
		return err
	})
}

// readyz: a farm is ready while it holds a session and has seen the whole cluster. It is not ready before it reaches
// Consul, before its last standing query has answered, and when Consul is gone. A preparer is ready as soon as it
// supervises its node's pods, even without Consul. Both daemons are alive all the time.
func readyz(e *env) {
	e.startConsul("")
	d := newDoor(e)
	farm, preparer := e.farm("f1", d.addr), e.preparerAt(1, d.addr)
	farm.ready(http.StatusServiceUnavailable, "no session with Consul is held")
	preparer.ready(http.StatusOK, "ok")

	late := "/bells/7/"
	d.unlock(late)
	e.members("f1")
	farm.ready(http.StatusServiceUnavailable, "not all watches have delivered yet")
	close(d.free)
	farm.ready(http.StatusOK, "ok")
	preparer.ready(http.StatusOK, "ok")
	e.applied(e.hello(1, nil))
	processes := e.processes()

	if err := e.consul.Proc.Kill(); err != nil {
		e.t.Fatal(err)
	}
	farm.ready(http.StatusServiceUnavailable, "no session with Consul is held")
	preparer.ready(http.StatusOK, "ok")
	e.sameProcesses(processes, "after Consul was gone")
}

// unclaimed: no farm's selector matches a controller. One alert is raised, and it is resolved when a farm with a
// matching selector comes.
func unclaimed(e *env) {
	e.startConsul("")
	e.preparer(1)
	e.farm("f1", "", "--rc-selector", "env=prod")
	e.members("f1")
	h := e.hello(1, nil)
	e.rcctl("labels: {env: dev}\n"+cluster.HelloSpec(h), "apply", "-f", "-")
	id := e.rcID("hello")
	other := h
	other.Name, other.Port = "other", 8081
	e.rcctl("labels: {env: prod}\n"+cluster.HelloSpec(other), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	if lock, err := e.client.Get(e.t.Context(), e.store.Keys().Locks.Key(id),
		consul.Consistent); !errors.Is(err, consul.ErrNotFound) {
		e.t.Errorf("the lock of a controller that no farm may take: %+v, %v", lock, err)
	}
	// This takes two sweeps, 30 s, and a third, which alerts.
	e.within(4*limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && !st.Value.Is(rc.Unclaimed) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return errors.Join(err, e.told("raised", 1))
	})
	asked := time.Now()
	e.farm("f2", "", "--rc-selector", "env in (dev, test)")
	e.within(limit, func() error { return e.converged(id, 1) })
	e.ownedBy(id, "f2", "", limit)
	e.t.Logf("it ran %s after the farm was started", time.Since(asked).Round(time.Millisecond))
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, id)
		if err == nil && (st.Value.Is(rc.Unclaimed) || len(st.Value.Incidents) > 0) {
			err = fmt.Errorf("status %+v", st.Value)
		}
		return errors.Join(err, e.told("resolved", 1))
	})
	if err := e.told("raised", 1); err != nil {
		e.t.Error(err)
	}
	if owner, _, err := e.owner(e.rcID("other")); owner != "f1" {
		e.t.Errorf("the other controller is owned by %q, %v", owner, err)
	}
}

func (e *env) told(what string, want int) error {
	line := regexp.MustCompile(`alert ` + what + `.*condition=Unclaimed|condition=Unclaimed.*alert ` + what)
	n := 0
	for _, d := range e.daemons {
		n += len(line.FindAllString(d.logText(), -1))
	}
	if n != want {
		return fmt.Errorf("Unclaimed was %s %d times, want %d", what, n, want)
	}
	return nil
}
