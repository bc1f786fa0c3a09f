package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/store"
)

// fullDiskStop: a pod fills its node's disk and is started again every 100 ms. Even so the pod and its neighbour can be
// stopped. The supervisor is killed meanwhile, and the next supervisor starts no pod that was stopped.
func fullDiskStop(e *env) {
	e.startConsul("")
	n1 := e.smallDisk(64 << 20)
	e.farm("f1", "")
	e.applied(e.hello(1, nil))
	e.applyText(`name: filler
replicas: 1
pod:
  version: 1
  id: filler
  launchables:
  - name: main
    artifact: {kind: exec, path: /bin/sh}
    args: [-c, 'cat /dev/zero >> "$POD_HOME/all" 2> /dev/null; exit 1']
    restart: {backoff_min: 100ms, backoff_max: 100ms}
`)
	e.remember("hello", "filler")
	const restarts = 60 // space that all records shared would not last for so many
	e.within(2*limit, func() error { return e.startedAgain("filler", restarts) })
	var st syscall.Statfs_t
	root := filepath.Join("/proc", strconv.Itoa(n1.current().cmd.Process.Pid), "root", e.dir, "n1")
	if err := syscall.Statfs(root, &st); err != nil || st.Bavail > 0 {
		e.t.Errorf("%d blocks are free: %v", st.Bavail, err)
	}

	begun := time.Now()
	e.rcctl("", "rc", "delete", "hello", "--force", "--allow-mass-stop", "--wait", "--timeout", limit.String())
	for _, pid := range e.supervisors(1) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			e.t.Fatal(err)
		}
	}
	e.rcctl("", "rc", "delete", "filler", "--force", "--allow-mass-stop", "--wait", "--timeout", limit.String())
	e.t.Logf("both stopped after %.1f s", time.Since(begun).Seconds())
	if got := e.processes(); len(got) > 0 {
		e.t.Errorf("processes are left: %v", got)
	}
}

// smallDisk starts a preparer whose data directory is a file system of this size, in its own mount namespace.
func (e *env) smallDisk(bytes int) *daemon {
	e.t.Helper()
	data := filepath.Join(e.dir, "n1")
	if err := os.Mkdir(data, 0o755); err != nil {
		e.t.Fatal(err)
	}
	script := fmt.Sprintf(`mount -t tmpfs -o mode=755,size=%d small "$0" && exec `, bytes)
	unshare := "-m"
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 { // root in the outer of two user namespaces, to mount
		unshare = "-Urm"
		script += fmt.Sprintf("unshare -U --map-user=%d --map-group=%d ", uid, gid)
	}
	args := append([]string{unshare, "sh", "-c", script + `"$@"`, data, filepath.Join(e.root, "bin", "preparer")},
		e.common("n1", "")...)
	return e.start("n1", "/usr/bin/unshare", append(args, "--node", "n1", "--address", e.address(1),
		"--artifact-reserve-bytes", "0")...)
}

func (e *env) startedAgain(name string, times int) error {
	recs, _, err := e.store.Realities.List(e.t.Context(), store.Default)
	if err != nil {
		return err
	}
	var last *pod.Reality
	for _, rec := range recs {
		if last = &rec.Value; last.RCID == e.rcIDs[name] && last.Restarts >= times {
			return nil
		}
	}
	return fmt.Errorf("%s was not started again %d times: %+v", name, times, last)
}
