package e2e

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// pushHello pushes an image of a version of the sample program, without a shell, and tags it as stable. It returns the
// digest.
func (e *env) pushHello(reg *imagetest.Registry, text string) string {
	e.t.Helper()
	digest := e.pushImage(reg, v1.ImageConfig{
		Entrypoint: []string{"/hello"}, User: "web", WorkingDir: "/data", Env: []string{"HELLO_VERSION=" + text},
	}, imagetest.File("version", text))
	reg.Tag("team/hello", "stable", digest)
	return digest
}

// pushImage pushes an image of the sample program with a further file.
func (e *env) pushImage(reg *imagetest.Registry, config v1.ImageConfig, file imagetest.Entry) string {
	e.t.Helper()
	program, err := os.ReadFile(filepath.Join(e.root, "bin", "hello"))
	if err != nil {
		e.t.Fatal(err)
	}
	base := imagetest.Gzip(e.t, imagetest.Tar(e.t,
		imagetest.Dir("etc", 0o755, 0), imagetest.Dir("tmp", 0o777, 0), imagetest.Dir("data", 0o755, 0),
		imagetest.File("etc/passwd", "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/data:/bin/sh\n"),
		imagetest.File("etc/group", "root:x:0:\nweb:x:33:\n"),
	))
	app := imagetest.File("hello", string(program))
	app.Mode = 0o755
	return reg.Push(e.t, "team/hello", imagetest.Image{
		Config: config, Layers: []imagetest.Layer{base, imagetest.Gzip(e.t, imagetest.Tar(e.t, app, file))},
	})
}

// image: a service whose program is in an image runs in containers. They have a user of their own, are kept running
// when preparer and supervisor are killed, keep their volume, and leave nothing on the node.
func image(e *env) {
	reg := imagetest.New(e.t)
	digest := e.pushHello(reg, "one")
	e.startConsul("")
	n1 := e.preparer(1, "--registry-plain-http", reg.Host)
	e.farm("f1", "")
	e.gateOpen()
	e.rcctl(fmt.Sprintf(`name: web
replicas: 2
pod:
  version: 1
  id: web
  launchables:
  - name: main
    artifact: {kind: image, ref: "%s/team/hello@%s"}
  ports: [{name: http, dynamic: true}]
  health: {http: {port: http, path: /health}}
  volumes: [{name: data, path: /data/kept}]
  min_ready: 1s
`, reg.Host, digest), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	e.remember("web")

	pids := e.contained(2)
	for _, pid := range pids {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			e.t.Fatal(err)
		}
		if uid := fieldOf(string(status), "Uid:"); !strings.HasPrefix(uid, "2") || len(uid) != len("2000027681") {
			e.t.Errorf("process %d has the user %q, which is not one of a block", pid, uid)
		}
	}

	n1.kill()
	for _, pid := range e.supervisors(1) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	n1.startAgain()
	e.within(limit, func() error { return e.isNow("web", func(r *pod.Reality) bool { return r.Available }) })
	if after := e.contained(2); !slices.Equal(after, pids) {
		e.t.Errorf("containers %v are now %v", pids, after)
	}

	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error {
		now := slices.Sorted(maps.Values(e.processes()))
		if len(now) != 2 || slices.Contains(now, pids[0]) || !slices.Contains(now, pids[1]) {
			return fmt.Errorf("containers %v are now %v", pids, now)
		}
		return nil
	})
	e.within(limit, func() error { return e.isNow("web", func(r *pod.Reality) bool { return r.Available }) })

	e.rcctl("", "rc", "scale", "web", "0")
	e.contained(0)
	for _, pattern := range []string{"n1/containers/*"} {
		e.within(limit, func() error {
			left, err := filepath.Glob(filepath.Join(e.dir, pattern))
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("left on the node: %v", left)
			}
			return err
		})
	}
}

// containerUsers: an image begins as root, gives its volume to another account and goes on as that account, as images
// of databases do. On the node all these users are of the pod's block, and the log stays root's, although the image
// links its own log to /dev/stdout.
func containerUsers(e *env) {
	reg := imagetest.New(e.t)
	digest := e.pushImage(reg, v1.ImageConfig{Entrypoint: []string{"/hello"}, Env: []string{"HELLO_DROP=33"}},
		imagetest.Link("log", "/dev/stdout"))
	e.startConsul("")
	e.preparer(1, "--registry-plain-http", reg.Host)
	e.farm("f1", "")
	e.gateOpen()
	apply := func(version string) {
		e.rcctl(fmt.Sprintf(`name: web
replicas: 1
pod:
  version: 1
  id: web
  launchables:
  - name: main
    artifact: {kind: image, ref: "%s/team/hello@%s"}
    env: {HELLO_VERSION: %s}
  ports: [{name: http, dynamic: true}]
  volumes: [{name: data, path: /var/data}]
  min_ready: 1s
`, reg.Host, digest, version), "apply", "-f", "-", "--wait", "--timeout", limit.String())
		e.runs(map[string]int{version: 1})
	}
	starts := func(n int) {
		e.t.Helper()
		want := fmt.Sprintf("start %d as user 33", n)
		e.within(limit, func() error {
			if out := e.rcctl("", "logs", "web-main-0"); !strings.Contains(out, want) {
				return fmt.Errorf("the log has no %q:\n%s", want, out)
			}
			return nil
		})
	}
	apply("one")
	starts(1)
	pid := e.contained(1)[0]
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		e.t.Fatal(err)
	}
	uid, _ := strconv.Atoi(fieldOf(string(status), "Uid:"))
	if uid%install.BlockSize != 33 || uid < 2_000_000_000 {
		e.t.Errorf("process %d has the user %d, want the account 33 of a block", pid, uid)
	}
	owner := func(pattern string) int {
		paths, err := filepath.Glob(filepath.Join(e.dir, "n1", pattern))
		if err != nil || len(paths) != 1 {
			e.t.Fatalf("%s: %q, %v", pattern, paths, err)
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(paths[0], &st); err != nil {
			e.t.Fatal(err)
		}
		return int(st.Uid)
	}
	if got := owner("volumes/*/data"); got != uid {
		e.t.Errorf("the volume belongs to user %d, want %d", got, uid)
	}
	if got := owner("logs/*/main.log"); got != 0 {
		e.t.Errorf("the log belongs to user %d, want root", got)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	starts(2)
	apply("two")
	starts(3)
	if got := owner("volumes/*/data"); got != uid {
		e.t.Errorf("after an upgrade the volume belongs to user %d, want %d", got, uid)
	}
}

// privateRegistry: a registry wants a login. Node and rcctl read it from Docker's config.json. Without it both name the
// registry, and the login may come later.
func privateRegistry(e *env) {
	reg := imagetest.New(e.t)
	e.pushHello(reg, "one")
	reg.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "team" && password == "hidden" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	login := filepath.Join(e.dir, "config.json")
	e.startConsul("")
	n1 := e.preparer(1, "--registry-plain-http", reg.Host, "--registry-config", login)
	e.farm("f1", "")
	e.gateOpen()
	write := func(file, password string) {
		auth := base64.StdEncoding.EncodeToString([]byte("team:" + password))
		text := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, reg.Host, auth)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	write(login, "wrong")
	own := filepath.Join(e.dir, "own.json")
	write(own, "wrong")
	deploy := []string{
		"deploy", "-f", "-", "--yes", "--detach", "--registry-plain-http", reg.Host, "--registry-config", own,
	}
	if out, err := e.tryRcctl(stable(reg, 1, "always"), deploy...); err == nil || !strings.Contains(out, reg.Host) {
		e.t.Errorf("a registry lets rcctl in without a login, or is not named: %v\n%s", err, out)
	}
	write(own, "hidden")
	e.rcctl(stable(reg, 1, "always"), deploy...)
	e.within(limit, func() error {
		out := e.rcctl("", "pods", "-o", "yaml")
		if !strings.Contains(out, reg.Host) || !strings.Contains(out, "401") {
			return fmt.Errorf("the pod's report does not name the refusal:\n%s", out)
		}
		return nil
	})
	write(login, "hidden")
	e.runs(map[string]int{"one": 1})
	if log := n1.logText(); strings.Contains(log, "hidden") {
		e.t.Error("the log of the node has the password")
	}
}

// registrySlow: a registry is busy at first, breaks a connection in the middle, and takes longer than the deadlines of
// pod and stage. The report shows how far the pull is, and the deadlines wait for it.
func registrySlow(e *env) {
	const deadline = 4 * time.Second
	reg := imagetest.New(e.t)
	reg.Tag("team/hello", "stable", e.pushImage(reg,
		v1.ImageConfig{Entrypoint: []string{"/hello"}, Env: []string{"HELLO_VERSION=slow"}},
		imagetest.File("noise", string(imagetest.Noise(1, 2<<20)))))
	var busy, broken atomic.Bool
	reg.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || !busy.CompareAndSwap(false, true) {
			return false
		}
		imagetest.Busy(w, time.Second)
		return true
	})
	pace := time.NewTicker(40 * time.Millisecond) // for each 16 KiB
	e.t.Cleanup(pace.Stop)
	reg.Cut(func(served int) bool {
		<-pace.C
		return served > 1<<20 && broken.CompareAndSwap(false, true)
	})
	e.startConsul("")
	e.preparer(1, "--registry-plain-http", reg.Host)
	e.farm("f1", "")
	e.gateOpen()
	began := time.Now()
	document := strings.Replace(stable(reg, 1, "always"), "\npod:",
		fmt.Sprintf("\nprogress_deadline: %s\nupdate: {stage_timeout: %s}\npod:", deadline, deadline), 1)
	e.rcctl(document, "deploy", "-f", "-", "--yes", "--detach", "--registry-plain-http", reg.Host)
	e.within(limit, func() error {
		if out := e.rcctl("", "pods", "-o", "yaml"); !strings.Contains(out, " MB of the image of main") {
			return fmt.Errorf("the report does not show the pull:\n%s", out)
		}
		return nil
	})
	e.awaitEnd()
	e.runs(map[string]int{"slow": 1})
	if took := time.Since(began); !busy.Load() || !broken.Load() || took < 2*deadline {
		e.t.Errorf("the registry was busy: %t, broke: %t, took %s", busy.Load(), broken.Load(), took)
	}
}

// badImage: images that cannot run stop no pod of the former version, and the report names each reason.
func badImage(e *env) {
	reg := imagetest.New(e.t)
	good := e.pushHello(reg, "one")
	e.startConsul("")
	e.preparer(1, "--registry-plain-http", reg.Host)
	e.farm("f1", "")
	e.gateOpen()
	deploy := []string{"deploy", "-f", "-", "--yes", "--timeout", limit.String(), "--registry-plain-http", reg.Host}
	e.rcctl(stable(reg, 2, "always"), deploy...)
	reports := func(wants ...string) {
		e.t.Helper()
		e.within(limit, func() error {
			out := e.rcctl("", "pods", "-o", "yaml")
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return fmt.Errorf("no report has %q:\n%s", want, out)
				}
			}
			return nil
		})
	}

	config := v1.ImageConfig{Entrypoint: []string{"/missing"}, User: "web"}
	reg.Tag("team/hello", "stable", e.pushImage(reg, config, imagetest.File("version", "two")))
	if out, err := e.tryRcctl(stable(reg, 2, "always"), deploy...); err == nil || !strings.Contains(out, "/missing") {
		e.t.Errorf("an image without its program is deployed, or its program is not named: %v\n%s", err, out)
	}
	e.runs(map[string]int{"one": 2})

	for name, artifact := range map[string]string{
		"absent":   fmt.Sprintf(`ref: "%s/team/hello@%s"`, reg.Host, imagetest.Digest([]byte("absent"))),
		"platform": fmt.Sprintf(`ref: "%s/team/hello@%s", platform: linux/arm64`, reg.Host, good),
	} {
		e.rcctl(fmt.Sprintf("name: %[1]s\nreplicas: 1\npod:\n  version: 1\n  id: %[1]s\n  launchables:\n"+
			"  - name: main\n    artifact: {kind: image, %[2]s}\n", name, artifact), "apply", "-f", "-")
	}
	reports("not found", "no image for this platform")
	e.runs(map[string]int{"one": 2})
}

// stable is a service with the image that the tag stable names.
func stable(reg *imagetest.Registry, replicas int, digests string) string {
	return fmt.Sprintf(`name: web
replicas: %d
digests: %s
pod:
  version: 1
  id: web
  launchables:
  - name: main
    artifact: {kind: image, ref: "%s/team/hello:stable"}
  ports: [{name: http, dynamic: true}]
  health: {http: {port: http, path: /health}}
  min_ready: 1s
`, replicas, digests, reg.Host)
}

// imageDigests: a deployment finds the digest of a tag as its document says, and a tag that moved changes the service
// only then.
func imageDigests(e *env) {
	reg := imagetest.New(e.t)
	e.pushHello(reg, "one")
	e.startConsul("")
	e.preparer(1, "--registry-plain-http", reg.Host)
	e.farm("f1", "")
	e.gateOpen()
	deploy := []string{"deploy", "-f", "-", "--yes", "--timeout", limit.String(), "--registry-plain-http", reg.Host}
	out, err := e.tryRcctl(stable(reg, 2, "never"), deploy...)
	if err == nil || !strings.Contains(out, "no service has") {
		e.t.Errorf("a digest that is not known is found: %v\n%s", err, out)
	}
	e.rcctl(stable(reg, 2, "always"), deploy...)
	e.runs(map[string]int{"one": 2})
	e.pushHello(reg, "two")
	e.rcctl(stable(reg, 2, "missing"), deploy...)
	e.runs(map[string]int{"one": 2})
	e.rcctl(stable(reg, 2, "always"), deploy...)
	e.runs(map[string]int{"two": 2})
}

// registryAway: without its registry, a node starts what it has on the disk, also again and for further pods. A
// deployment that must ask the registry names it.
func registryAway(e *env) {
	reg := imagetest.New(e.t)
	e.pushHello(reg, "one")
	e.startConsul("")
	n1 := e.preparer(1, "--registry-plain-http", reg.Host)
	e.farm("f1", "")
	e.gateOpen()
	deploy := []string{"deploy", "-f", "-", "--yes", "--timeout", limit.String(), "--registry-plain-http", reg.Host}
	e.rcctl(stable(reg, 1, "always"), deploy...)
	pids := e.contained(1)
	reg.Server.Close()
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	n1.kill()
	n1.startAgain()
	e.runs(map[string]int{"one": 1})
	e.rcctl("", "scale", "web", "2", "--yes", "--timeout", limit.String())
	e.runs(map[string]int{"one": 2})
	if out, err := e.tryRcctl(stable(reg, 3, "always"), deploy...); err == nil || !strings.Contains(out, reg.Host) {
		e.t.Errorf("a digest is found without a registry, or the registry is not named: %v\n%s", err, out)
	}
	e.rcctl(stable(reg, 3, "missing"), deploy...)
	e.runs(map[string]int{"one": 3})
}

// contained waits until so many containers run, and returns their first processes, sorted.
func (e *env) contained(count int) (pids []int) {
	e.t.Helper()
	e.within(limit, func() error {
		pids = slices.Sorted(maps.Values(e.processes()))
		if len(pids) != count {
			return fmt.Errorf("%d processes in containers, want %d", len(pids), count)
		}
		return nil
	})
	return pids
}

// fieldOf returns the first word after a name in a file such as /proc/self/status.
func fieldOf(text, name string) string {
	_, after, _ := strings.Cut(text, "\n"+name)
	if words := strings.Fields(after); len(words) > 0 {
		return words[0]
	}
	return ""
}
