package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/rcfarm/rcfarm/integration/cluster"
	"github.com/rcfarm/rcfarm/pkg/node"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/rc"
	"github.com/rcfarm/rcfarm/pkg/scale"
	"github.com/rcfarm/rcfarm/pkg/store"
)

func (e *env) curl(line string) (status int, answer scale.Response) {
	e.t.Helper()
	cmd := exec.CommandContext(e.t.Context(), "sh", "-c", line+` -w '\n%{http_code}'`)
	cmd.Dir = e.dir
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	end := strings.LastIndex(text, "\n")
	if err == nil {
		status, err = strconv.Atoi(text[end+1:])
	}
	if err == nil {
		err = json.Unmarshal([]byte(text[:end]), &answer)
	}
	if err != nil {
		e.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return status, answer
}

func (e *env) post(n int, body, query, more string) (int, scale.Response) {
	e.t.Helper()
	if err := os.WriteFile(filepath.Join(e.dir, "body.json"), []byte(body), 0o600); err != nil {
		e.t.Fatal(err)
	}
	socket := filepath.Join(e.dir, fmt.Sprintf("n%d", n), "api", "socket")
	return e.curl(fmt.Sprintf("curl -sS --unix-socket %s 'http://node%s%s' -d @body.json %s", socket, scale.Path, query,
		more))
}

func (e *env) posted(n int, r scale.Request) {
	e.t.Helper()
	if status, answer := e.post(n, string(e.encode(r)), "", ""); status != 200 || !answer.Success {
		e.t.Fatalf("%+v: %d, %+v", r, status, answer)
	}
}

// shown returns the first and the last block of a language in docs/local-services.md.
func (e *env) shown(language string) (first, last string) {
	e.t.Helper()
	data, err := os.ReadFile(filepath.Join(e.root, "docs", "local-services.md"))
	parts := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(data), -1)
	if err != nil || len(parts) == 0 {
		e.t.Fatalf("docs/local-services.md has no %s: %v", language, err)
	}
	return parts[0][1], parts[len(parts)-1][1]
}

// legacyScale: with curl and the documentation alone, a program makes a node run a service. The node answers with each
// documented status when it should, and a refused request changes nothing.
func legacyScale(e *env) {
	e.startConsulOnDisk()
	n1 := e.preparer(1, "--slots", "3")
	e.within(limit, func() error {
		_, err := os.Stat(filepath.Join(e.dir, "n1", "api", "socket"))
		return err
	})
	request, taken := e.shown("json")
	line, _ := e.shown("sh")
	if err := os.WriteFile(filepath.Join(e.dir, "agent.json"), []byte(request), 0o600); err != nil {
		e.t.Fatal(err)
	}
	line = strings.ReplaceAll(strings.TrimSpace(line), "/var/lib/rcfarm/preparer", filepath.Join(e.dir, "n1"))
	e.within(limit, func() error { // until the node has its session
		if status, answer := e.curl(line); status != 200 || string(e.encode(answer)) != strings.TrimSpace(taken) {
			return fmt.Errorf("%s: %d, %+v", line, status, answer)
		}
		return nil
	})
	e.podsSay(`"local"`, `"agent-main-0"`, `"agent-main-1"`, `"running"`)
	e.within(limit, func() error {
		if n := len(e.processes()); n != 2 {
			return fmt.Errorf("%d processes", n)
		}
		return nil
	})
	before := e.processes()

	var spec scale.Request
	e.decode([]byte(request), &spec)
	e.posted(1, scale.Request{Service: "agent", Replicas: 2, Revision: 9})
	// The file cannot be written, as on a full disk.
	if err := os.Mkdir(filepath.Join(e.dir, "n1", "local", "full.json"), 0o700); err != nil {
		e.t.Fatal(err)
	}
	full := strings.ReplaceAll(string(e.encode(spec)), `"agent"`, `"full"`)
	for _, c := range []struct {
		body, query, more string
		status            int
		message           string
	}{
		{body: `{"service":"agent","replicas":1`, status: 400, message: "cut off"},
		{body: `{"service":"Agent"}`, status: 400, message: "service: "},
		{
			body: `{"service":"agent","spec":{"manifest":{"version":1,"id":"agent"}}}`, status: 400,
			message: "spec.manifest.launchables",
		},
		{body: `{"service":"other","replicas":1}`, status: 404, message: "send its spec"},
		{body: `{"service":"agent","replicas":0,"revision":8}`, status: 409, message: "older than 9"},
		{body: `{"service":"agent","replicas":4}`, status: 409, message: "slots: it offers 3, 3 are taken, 1 more"},
		{body: `{"service":"agent","replicas":0}`, query: "?node=n2", status: 421, message: "not of n2"},
		{
			body:   `{"service":"agent","epoch":{"nonce":"n","rc_id":"r","term":"t"},"revision":10}`,
			status: 400, message: "epoch.term",
		},
		// no farm runs, so the cluster has no epoch
		{
			body:   `{"service":"agent","epoch":{"nonce":"n","rc_id":"r","term":"n/00000000000000000001"},"revision":10}`,
			status: 503, message: "epoch",
		},
		{
			body: strings.ReplaceAll(full, `"replicas":2`, `"replicas":1`), status: 500,
			message: "save local service full",
		},
	} {
		if status, answer := e.post(1, c.body, c.query, c.more); status != c.status || answer.Success ||
			!strings.Contains(answer.Message, c.message) {
			e.t.Errorf("%s%s: %d, %+v; want %d, %q", c.body, c.query, status, answer, c.status, c.message)
		}
	}
	e.sameProcesses(before, "after requests that were refused")
	e.localClaims(1, "local-agent/main.0", "local-agent/main.1") // the claim of the unsaved service is gone

	token := filepath.Join(e.dir, "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		e.t.Fatal(err)
	}
	e.preparer(2, "--api-addr", "127.0.0.1:0", "--api-token-file", token)
	var url string
	e.within(limit, func() error {
		if url = e.nodes()["n2"].Value.API; url == "" {
			return errors.New("n2 has no record")
		}
		return nil
	})
	ask := "curl -sS " + url + scale.Path + " -d @agent.json"
	if status, _ := e.curl(ask); status != 401 {
		e.t.Errorf("without the token: %d", status)
	}
	e.within(limit, func() error {
		if status, answer := e.curl(ask + ` -H "Authorization: Bearer $(cat token)"`); status != 200 {
			return fmt.Errorf("with the token: %d, %+v", status, answer)
		}
		return nil
	})

	e.consul.Kill()
	e.within(limit, func() error {
		if status, answer := e.post(1, `{"service":"agent","replicas":3}`, "", ""); status != 503 {
			return fmt.Errorf("more without Consul: %d, %+v", status, answer)
		}
		return nil
	})
	e.posted(1, scale.New("agent", 1))
	e.within(limit, func() error {
		now := e.processes()
		if now["local-agent/main.0@n1"] != before["local-agent/main.0@n1"] || now["local-agent/main.1@n1"] != 0 {
			return fmt.Errorf("processes %v, before %v", now, before)
		}
		return nil
	})
	if err := e.consul.StartAgain(); err != nil {
		e.t.Fatal(err)
	}
	e.localClaims(1, "local-agent/main.0")
	n1.kill() // the next preparer continues with the last request
	e.serveAgain(1, n1)
	e.within(limit, func() error {
		if status, answer := e.post(1, `{"service":"agent","replicas":0}`, "", ""); status != 200 {
			return fmt.Errorf("%d, %+v", status, answer)
		}
		return nil
	})
	e.localClaims(1)
	for _, c := range []struct { // nothing of the service runs, but the node remembers it
		body   string
		status int
	}{
		{`{"service":"agent","replicas":0,"revision":9}`, 200},
		{strings.ReplaceAll(request, `"replicas": 2`, `"replicas": 2, "revision": 8`), 409},
		{`{"service":"agent","replicas":1}`, 200},
	} {
		if status, answer := e.post(1, c.body, "", ""); status != c.status {
			e.t.Errorf("%s: %d, %+v", c.body, status, answer)
		}
	}
	e.localClaims(1, "local-agent/main.0")
}

func (e *env) localClaims(n int, want ...string) {
	e.t.Helper()
	e.within(limit, func() error {
		got := []string{}
		for key, h := range e.reservation(n).Claims {
			if h.Pod.Local() {
				got = append(got, key)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) && len(got)+len(want) > 0 {
			return fmt.Errorf("local services have the shares %v, want %v", got, want)
		}
		return nil
	})
}

func (e *env) reservation(n int) node.Reservation {
	e.t.Helper()
	name := fmt.Sprintf("n%d", n)
	found, bad, err := e.store.ReservationsOf(e.t.Context(), []string{name})
	if err = errors.Join(err, bad[name]); err != nil {
		e.t.Fatal(err)
	}
	return found[name].Value
}

func (e *env) servedLocally(name string, port int, memory string) scale.Spec {
	e.t.Helper()
	a := e.hello(0, nil).Artifact
	main := map[string]any{
		"name": "web", "artifact": map[string]any{"kind": "tar", "url": a.URL, "sha256": a.SHA256},
		"resources": map[string]any{"memory": memory},
	}
	number := map[string]any{"name": "http", "dynamic": true}
	if port != 0 {
		number = map[string]any{"name": "http", "port": port}
	}
	return scale.Spec{Manifest: e.encode(map[string]any{
		"version": 1, "id": name, "launchables": []any{main}, "min_ready": "0s", "ports": []any{number},
		"health": map[string]any{
			"http":     map[string]any{"port": "http", "path": "/health"},
			"interval": "1s", "timeout": "5s",
		},
	})}
}

func (e *env) serveAgain(n int, d *daemon) {
	e.t.Helper()
	name := fmt.Sprintf("n%d", n)
	before := e.nodes()[name].Value.Incarnation
	d.startAgain()
	e.within(limit, func() error {
		rec := e.nodes()[name]
		if rec.Session == "" || rec.Value.Incarnation == before || rec.Value.OrphanPages == nil {
			return fmt.Errorf("%s is not back: %+v", name, rec)
		}
		return nil
	})
}

func (e *env) awaitLocal(n int) {
	e.t.Helper()
	e.within(limit, func() error {
		out, err := e.tryRcctl("", "pods", "-o", "json")
		if err != nil {
			return err
		}
		var views []struct {
			Kind      string `json:"kind"`
			Available bool   `json:"available"`
		}
		e.decode([]byte(out[strings.Index(out, "["):]), &views)
		ready := 0
		for _, v := range views {
			if v.Kind == "orphan" {
				return fmt.Errorf("an orphan: %s", out)
			}
			if v.Kind == pod.KindLocal && v.Available {
				ready++
			}
		}
		if ready != n {
			return fmt.Errorf("%d local pods are ready, want %d: %s", ready, n, out)
		}
		return nil
	})
}

// localService: a node has two local services while farms place pods on it. The farms neither adopt nor sweep the
// services. The services survive deaths of the preparer, and a restart of the machine without Consul. Pods of farms do
// not get the ports and the capacity of the services, even if a farm and the node reserve at the same moment. A name
// belongs to the service or controller that had it first.
func localService(e *env) {
	const first, last = 22000, 22004
	e.startConsulOnDisk()
	n1 := e.preparer(1, "--port-min", strconv.Itoa(first), "--port-max",
		strconv.Itoa(last), "--memory", strconv.Itoa(1<<30))
	e.farm("f1", "")
	e.farm("f2", "")
	e.within(limit, func() error {
		if e.nodes()["n1"].Value.Epoch == "" {
			return errors.New("n1 is not there yet")
		}
		return nil
	})
	e.posted(1, scale.New("agent", 2).WithSpec(e.servedLocally("agent", 0, "200Mi")))
	e.posted(1, scale.New("side", 1).WithSpec(e.servedLocally("side", 8081, "100Mi")))
	e.awaitLocal(3)
	before := e.processes()
	n1.kill()
	e.serveAgain(1, n1)
	e.awaitLocal(3)
	n1.signal(syscall.SIGTERM)
	<-n1.current().ended
	e.serveAgain(1, n1)
	e.awaitLocal(3)
	if out := e.rcctl("", "node", "sweep", "n1", "--force"); !strings.Contains(out, "nothing to sweep") {
		e.t.Errorf("sweep: %s", out)
	}
	e.sameProcesses(before, "after two deaths of the preparer and a sweep")

	// The farm should place more pods than fit, while the node is asked for one more local pod. The first to reserve
	// the last capacity gets it.
	h := e.hello(last-first+1, nil)
	h.Port = 0
	var asked sync.WaitGroup
	var status int
	asked.Go(func() {
		out, err := exec.CommandContext(e.t.Context(), "curl", "-sS", "--unix-socket",
			filepath.Join(e.dir, "n1", "api", "socket"), "http://node"+scale.Path,
			"-d", `{"service":"agent","replicas":3}`, "-o", "/dev/null", "-w", "%{http_code}").Output()
		if err == nil {
			status, err = strconv.Atoi(string(out))
		}
		if err != nil {
			e.t.Error(err)
		}
	})
	e.apply(h)
	asked.Wait()
	locals := map[int]int{200: 3, 409: 2}[status]
	if locals == 0 {
		e.t.Fatalf("one more beside a farm that places: status %d", status)
	}
	e.awaitLocal(locals + 1)
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, e.rcID("hello"))
		if err == nil && (st.Value.Available != last-first+1-locals || !st.Value.Is(rc.InsufficientNodes)) {
			err = fmt.Errorf("%d local pods, status %+v", locals, st.Value)
		}
		return err
	})
	e.answering(last-first+1-locals, "")
	e.nobodyTwice(1 << 30)
	big := strings.Replace(cluster.HelloSpec(cluster.Hello{Name: "big", Replicas: 1, Port: 8090, Artifact: h.Artifact}),
		"stop_grace: 5s", "stop_grace: 5s\n    resources: {memory: 600Mi}", 1)
	e.rcctl(big, "apply", "-f", "-")
	e.within(limit, func() error {
		st, err := e.store.Statuses.Get(e.t.Context(), store.Default, e.rcID("big"))
		if err == nil && !st.Value.Is(rc.InsufficientNodes) {
			err = fmt.Errorf("a pod that needs what local services have: %+v", st.Value)
		}
		return err
	})
	e.rcctl("", "rc", "delete", "big", "--force")

	if status, answer := e.post(1, string(e.encode(scale.New("hello", 1).WithSpec(e.servedLocally("hello", 0, "1Mi")))),
		"", ""); status != 409 || !strings.Contains(answer.Message, "of a controller has the name") {
		e.t.Errorf("the name of a controller's pod: %d, %+v", status, answer)
	}
	e.scaleTo("hello", 1)
	e.rcctl(cluster.HelloSpec(cluster.Hello{
		Name: "side", Replicas: 1, Port: 8082, Artifact: h.Artifact,
		HealthTimeout: h.HealthTimeout,
	}), "apply", "-f", "-")
	e.podsSay(`the local service \"side\" has its name`)
	e.posted(1, scale.New("side", 0))
	e.within(limit, func() error { return e.converged(e.rcID("side"), 1) })
	e.awaitLocal(locals)

	before = e.processes()
	e.consul.Kill()
	e.powerOff(1, n1)
	n1.afterReboot("a0000000-0000-4000-8000-000000000001")
	n1.startAgain()
	e.within(limit, func() error {
		now := e.processes()
		for key, pid := range before {
			if strings.HasPrefix(key, "local-") && (now[key] == 0 || now[key] == pid) {
				return fmt.Errorf("%s has not started again: %v", key, now)
			}
		}
		return nil
	})
	if err := e.consul.StartAgain(); err != nil {
		e.t.Fatal(err)
	}
	e.awaitLocal(locals)
	e.posted(1, scale.New("agent", 0))
	e.localClaims(1)
	e.awaitLocal(0)
	for key := range e.processes() {
		if strings.HasPrefix(key, "local-") {
			e.t.Errorf("%s runs", key)
		}
	}
}

// nobodyTwice asserts that node 1's claims fit its capacity, and that the pod that answers on a port has the claim for
// it.
func (e *env) nobodyTwice(memory int64) {
	e.t.Helper()
	owner := map[int]string{}
	for key, h := range e.reservation(1).Claims {
		memory -= h.Memory
		for _, port := range h.Ports {
			if owner[port] != "" {
				e.t.Errorf("port %d is that of %s and of %s", port, owner[port], key)
			}
			owner[port] = key
			page, err := cluster.Get(e.t.Context(), "http://"+net.JoinHostPort(e.address(1), strconv.Itoa(port))+"/")
			if name := h.Pod.LocalService(); err != nil ||
				name != "" && !strings.HasPrefix(page, fmt.Sprintf("hello from %s-main-%d on n1,", name, h.Pod.Index)) {
				e.t.Errorf("port %d of %s: %q, %v", port, key, page, err)
			}
		}
	}
	if memory < 0 {
		e.t.Errorf("%d bytes more are reserved than there are", -memory)
	}
}

func (e *env) scaleTo(name string, n int) {
	e.t.Helper()
	e.rcctl("", "rc", "scale", name, strconv.Itoa(n))
	e.within(limit, func() error { return e.converged(e.rcID(name), n) })
}
