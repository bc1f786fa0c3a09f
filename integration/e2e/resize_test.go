package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

func sized(cpu, memory, update string) string {
	return fmt.Sprintf(`name: web
replicas: 3
spread: kubernetes.io/hostname
update: {%s}
pod:
  version: 1
  id: web
  min_ready: 0s
  launchables:
  - name: main
    artifact: {kind: exec, path: /bin/sh}
    args:
    - -c
    - '[ -e used ] || { x=$(head -c 50331648 /dev/zero | tr "\0" x); mkfifo forever; : > used; }; read line < forever'
    resources: {cpu: %s, memory: %s}
`, update, cpu, memory)
}

// resizeLive: while the pods run, their CPU and memory are raised and then lowered again, and nothing else changes.
// Meanwhile a preparer dies. If the memory is lowered below what a pod uses, and the machine's cgroups limit memory,
// the pod is started again. If a size fits on no node, it is refused. If a size fits on only some of the nodes, the
// rollout takes it back.
func resizeLive(e *env) {
	e.startConsul("")
	n1 := e.preparer(1, "--cpu", "4000")
	e.preparer(2, "--cpu", "2000")
	e.preparer(3, "--cpu", "2000")
	e.farm("f1", "")
	e.within(limit, func() error {
		for i := range 3 {
			if rec := e.nodes()[fmt.Sprintf("n%d", i+1)]; rec.Session == "" || rec.Value.Epoch == "" {
				return fmt.Errorf("n%d has not seen this cluster", i+1)
			}
		}
		return nil
	})
	e.rcctl(sized("100m", "256Mi", ""), "deploy", "-f", "-", "--yes")
	before := e.three()
	e.sizes(before, 100, 256)

	changes := e.planOf(sized("500m", "512Mi", ""))
	if !n1.holdsLimits() {
		if !strings.Contains(changes, "run 3 pods of web-r2") {
			e.t.Errorf("nodes without cgroups, and the plan is\n%s", changes)
		}
		return
	}
	const says = "change the limits of 3 pods of web-r1 to cpu 500m, memory 512Mi, no restart"
	if !strings.Contains(changes, says) || !strings.Contains(changes, "the limits of running processes change") {
		e.t.Errorf("the plan does not say %q:\n%s", says, changes)
	}
	e.rcctl(sized("500m", "512Mi", ""), "deploy", "-f", "-", "--yes")
	e.sameProcesses(before, "larger")
	e.sizes(before, 500, 512)
	n1.kill()
	n1.startAgain()
	e.rcctl("", "rollback", "web", "--yes")
	e.sameProcesses(before, "rolled back")
	e.sizes(before, 100, 256)
	e.mustSay([]string{"REVISION", "3"}, "history", "web")

	out, err := e.tryRcctl(sized("9000m", "256Mi", ""), "deploy", "-f", "-", "--yes")
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || !strings.Contains(err.Error(), "no-room") {
		e.t.Errorf("a size that fits on no node: %v\n%s", err, out)
	}
	out, err = e.tryRcctl(sized("3000m", "256Mi", "stage_timeout: 6s"), "deploy", "-f",
		"-", "--yes", "--strategy", "in-place")
	if err == nil || !strings.Contains(err.Error(), "exit status 5") || !strings.Contains(out, "no progress for 6s") ||
		!strings.Contains(out, "has no room: resources") {
		e.t.Errorf("a size that fits on one node: %v\n%s", err, out)
	}
	e.awaitEnd()
	e.sameProcesses(before, "did not fit")
	e.sizes(before, 100, 256)

	e.rcctl(sized("100m", "16Mi", ""), "deploy", "-f", "-", "--yes")
	after, counted := e.three(), n1.countsMemory()
	for key, pid := range before {
		if started := after[key] != pid; after[key] == 0 || started != counted {
			e.t.Errorf("%s runs as %d, before as %d; the machine counts memory: %t", key, after[key], pid, counted)
		}
	}
	if text := "stopped and started for its new limits"; strings.Contains(n1.logText(), text) != counted {
		e.t.Errorf("the log says %q: %t", text, !counted)
	}
	e.sizes(after, 100, 16)
	e.t.Logf("the machine counts memory: %t", counted)
}

// three returns the processes of three pods when none has a child any more.
func (e *env) three() (found map[string]int) {
	e.t.Helper()
	e.within(limit, func() (err error) {
		if found, err = e.scan(); err == nil && len(found) != 3 {
			err = fmt.Errorf("processes %v, want three", found)
		}
		return err
	})
	return found
}

func (e *env) planOf(document string) string {
	e.t.Helper()
	out, err := e.tryRcctl(document, "plan", "-f", "-")
	if err == nil || !strings.Contains(err.Error(), "exit status 6") {
		e.t.Fatalf("rcctl plan: %v\n%s", err, out)
	}
	return out
}

func (d *daemon) holdsLimits() bool { return !strings.Contains(d.logText(), "cgroup: ") }

func (d *daemon) countsMemory() bool {
	return d.holdsLimits() && !strings.Contains(d.logText(), "memory limit: ")
}

// sizes waits until claims have this CPU and memory. The kernel must have the same limits, where the machine has the
// cgroup controllers.
func (e *env) sizes(processes map[string]int, cpu, mebibytes int64) {
	e.t.Helper()
	e.within(limit, func() error {
		booked := 0
		for i := range 3 {
			for key, claim := range e.reservation(i + 1).Claims {
				if claim.CPU != cpu || claim.Memory != mebibytes<<20 {
					return fmt.Errorf("%s has booked %+v, want cpu %d and %d MiB", key, claim, cpu, mebibytes)
				}
				booked++
			}
		}
		if booked != 3 {
			return fmt.Errorf("%d pods are booked, want 3", booked)
		}
		return nil
	})
	want := map[string]string{
		"cpu.max":    fmt.Sprintf("%d 100000\n", cpu*100),
		"memory.max": fmt.Sprintf("%d\n", mebibytes<<20),
	}
	for key, pid := range processes {
		dir := cgroupOf(pid)
		got := map[string]string{}
		for file := range want {
			if text, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				got[file] = string(text)
			}
		}
		held := maps.Clone(want)
		maps.DeleteFunc(held, func(file, _ string) bool { return got[file] == "" })
		if dir == "" || !maps.Equal(got, held) {
			e.t.Errorf("%s: cgroup %q holds %v, want %v", key, dir, got, held)
		}
	}
}

func cgroupOf(pid int) string {
	groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // it may have ended
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		for group := range strings.Lines(string(groups)) {
			if path, is := strings.CutPrefix(strings.TrimSpace(group), "0::"); is {
				return filepath.Join(fields[1], path)
			}
		}
	}
	return ""
}
