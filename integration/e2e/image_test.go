package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/pod"
)

// pushHello pushes an image with the sample program, which has no shell. The text differs between versions. It returns
// the digest.
func (e *env) pushHello(reg *imagetest.Registry, text string) string {
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
	app.Header.Mode = 0o755
	digest := reg.Push(e.t, "team/hello", imagetest.Image{
		Config: v1.ImageConfig{Entrypoint: []string{"/hello"}, User: "web", WorkingDir: "/data"},
		Layers: []imagetest.Layer{
			base, imagetest.Gzip(e.t, imagetest.Tar(e.t, app, imagetest.File("version", text))),
		},
	})
	reg.Tag("team/hello", text, digest)
	return digest
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
    env: {HELLO_VERSION: one}
  ports: [{name: http, dynamic: true}]
  health: {http: {port: http, path: /health}}
  volumes: [{name: data, path: /data/kept}]
  min_ready: 1s
`, reg.Host, digest), "apply", "-f", "-", "--wait", "--timeout", limit.String())
	e.remember("web")

	pids := e.contained(n1, 2)
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
	if after := e.contained(n1, 2); !slices.Equal(after, pids) {
		e.t.Errorf("containers %v are now %v", pids, after)
	}

	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		e.t.Fatal(err)
	}
	e.within(limit, func() error {
		if now := e.contained(n1, 2); slices.Contains(now, pids[0]) || !slices.Contains(now, pids[1]) {
			return fmt.Errorf("containers %v are now %v", pids, now)
		}
		return nil
	})
	e.within(limit, func() error { return e.isNow("web", func(r *pod.Reality) bool { return r.Available }) })

	e.rcctl("", "rc", "scale", "web", "0")
	e.contained(n1, 0)
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

// contained waits until so many containers of hello run on a node, and returns their first processes, sorted.
func (e *env) contained(n *daemon, count int) (pids []int) {
	e.t.Helper()
	e.within(limit, func() error {
		pids = nil
		all, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return err
		}
		for _, file := range all {
			environ, err := os.ReadFile(file)
			if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), "POD_HOME=/pod/home") {
				continue
			}
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		if slices.Sort(pids); len(pids) != count {
			return fmt.Errorf("%d processes in containers of %s, want %d", len(pids), n.name, count)
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
