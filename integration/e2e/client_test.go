package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// served is service.drain, long enough for a busy machine to find a pod and then to call it.
const served = 2 * time.Second

func servedSpec(h cluster.Hello) string {
	return strings.Replace(cluster.HelloSpec(h), "  health:\n",
		fmt.Sprintf("  service: {drain: %s}\n  health:\n", served), 1)
}

// caller asks Consul which pods of a service pass, and calls one, without pause. For every second call it uses an
// earlier answer, like a caching resolver, at most half of served old.
type caller struct {
	e       *env
	service string
	stop    context.CancelFunc
	ended   chan struct{}
	lookup  http.Client // keeps its connection
	call    http.Client // makes a new connection each time
	found   finding     // the remembered answer

	mu       sync.Mutex
	calls    int
	failed   []string
	versions map[string]int // how many answers each version gave
}

func (e *env) callService(name string) *caller {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	c := &caller{
		e: e, service: name, stop: cancel, ended: make(chan struct{}), versions: map[string]int{},
		lookup: http.Client{Timeout: limit, Transport: &http.Transport{}},
		call:   http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	go c.run(ctx)
	e.t.Cleanup(c.halt)
	e.within(limit, func() error {
		if len(c.answers()) == 0 {
			return fmt.Errorf("%s has not answered", name)
		}
		return nil
	})
	return c
}

func (c *caller) halt() {
	c.stop()
	<-c.ended
	c.lookup.CloseIdleConnections()
}

func (c *caller) end() {
	c.e.t.Helper()
	c.halt()
	if len(c.failed) > 0 {
		c.e.t.Errorf("%d of %d calls of %s failed: %.1500q", len(c.failed), c.calls, c.service, c.failed)
	}
	c.e.t.Logf("%d calls of %s, answered by versions %v", c.calls, c.service, c.versions)
}

func (c *caller) answers() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.versions)
}

func (c *caller) awaitVersion(version string) {
	c.e.t.Helper()
	before := c.answers()[version]
	c.e.within(limit, func() error {
		if now := c.answers(); now[version] == before {
			return fmt.Errorf("no answer of version %s: %v", version, now)
		}
		return nil
	})
}

func (c *caller) run(ctx context.Context) {
	defer close(c.ended)
	for n := 0; ctx.Err() == nil; n++ {
		version, err := c.once(ctx, n)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		c.calls++
		if err != nil {
			c.failed = append(c.failed, time.Now().UTC().Format("15:04:05.000 ")+err.Error())
		} else {
			c.versions[version]++
		}
		c.mu.Unlock()
	}
}

type finding struct {
	at   time.Time
	pods []struct {
		Service struct {
			Address string
			Port    int
		}
	}
}

func (c *caller) find(ctx context.Context) (f finding, err error) {
	page, err := c.get(ctx, &c.lookup, "http://"+c.e.consul.Addr+"/v1/health/service/"+c.service+"?passing")
	if err == nil {
		err = json.Unmarshal([]byte(page), &f.pods)
	}
	if err == nil && len(f.pods) == 0 {
		err = fmt.Errorf("no pod of %s passes", c.service)
	}
	f.at = time.Now()
	return f, err
}

func (c *caller) once(ctx context.Context, n int) (version string, err error) {
	found := c.found
	if n%2 == 0 || time.Since(found.at) > served/2 {
		if found, err = c.find(ctx); err != nil {
			return "", err
		}
	}
	if time.Since(c.found.at) > served/2 {
		c.found = found
	}
	at := found.pods[n/2%len(found.pods)].Service
	answer, err := c.get(ctx, &c.call, "http://"+net.JoinHostPort(at.Address, strconv.Itoa(at.Port))+"/")
	switch late := time.Since(found.at); {
	case errors.Is(err, syscall.ECONNREFUSED) && late > served:
		return "late", nil // a pod need not be there for longer
	case err != nil:
		return "", fmt.Errorf("%s after it was found: %w", late, err)
	}
	_, version, _ = strings.Cut(strings.TrimSpace(answer), ", version ")
	return version, nil
}

func (c *caller) get(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}

// drained: no call of a client that finds a service in Consul fails while the pods are replaced, moved and scaled down.
func drained(e *env) {
	e.startConsul("")
	for n := range 2 {
		e.preparer(n + 1)
	}
	e.farm("f1", "")
	two := 2
	h := e.hello(3, map[string]string{"HELLO_VERSION": "1"})
	h.Port, h.MinAvailable = 0, &two
	wait := []string{"apply", "-f", "-", "--wait", "--timeout", limit.String()}
	e.rcctl(servedSpec(h), wait...)
	calls := e.callService("hello")
	h.Env["HELLO_VERSION"] = "2"
	e.rcctl(servedSpec(h), wait...)
	calls.awaitVersion("2")
	e.rcctl("", "node", "drain", "n1", "--wait", "--timeout", limit.String())
	one := 1
	h.Replicas, h.MinAvailable = 1, &one
	e.rcctl(servedSpec(h), wait...)
	calls.end()
}
