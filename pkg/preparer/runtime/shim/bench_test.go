package shim_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/runtime"
	"github.com/rcfarm/rcfarm/pkg/preparer/runtime/isolate"
)

// BenchmarkStarts measures many starts at once, without and with isolation.
func BenchmarkStarts(b *testing.B) {
	for _, count := range []int{100, 300, 500} {
		for name, iso := range map[string]func(*testing.B, *node) *runtime.Isolation{
			"bare":     nil,
			"isolated": isolation,
		} {
			b.Run(fmt.Sprintf("%s/%d", name, count), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					n := newNode(b, func(s *settings) { s.LogCheck = time.Second })
					n.start(b, n.idler("first")) // so that the start of the supervisor is not measured
					b.StartTimer()
					began := time.Now()
					n.startMany(b, count, iso)
					b.ReportMetric(float64(count)/time.Since(began).Seconds(), "starts/s")
					own, _ := n.cpu(b)
					b.ReportMetric(float64(own.Milliseconds())/float64(count), "supervisor-ms/start")
					b.StopTimer()
					began = time.Now()
					n.stopMany(b, count)
					b.ReportMetric(float64(count)/time.Since(began).Seconds(), "stops/s")
					_, stubs := n.cpu(b)
					b.ReportMetric(float64(stubs.Milliseconds())/float64(count), "stub-ms/start")
					b.StartTimer()
				}
			})
		}
	}
}

// BenchmarkIdle measures a supervisor with 200 idle processes.
func BenchmarkIdle(b *testing.B) {
	const count, length = 200, 10 * time.Second
	for b.Loop() {
		n := newNode(b, func(s *settings) { s.LogCheck = time.Second })
		n.startMany(b, count, isolation)
		before, _ := n.cpu(b)
		<-time.After(length) // the measured time
		after, _ := n.cpu(b)
		b.ReportMetric(100*float64(after-before)/float64(length), "%core")
		b.ReportMetric(float64(n.pss(b))/count/1024, "kB-PSS/process")
		n.stopMany(b, count)
	}
}

func isolation(b *testing.B, n *node) *runtime.Isolation {
	b.Helper()
	host := isolate.Probe("rcfarm-test-bench")
	if host.Cgroup != "" {
		b.Cleanup(func() { isolate.Prune(host.Cgroup) })
	}
	iso := &runtime.Isolation{UID: os.Getuid(), GID: os.Getgid(), NoNewPrivileges: true}
	n.Cgroup = host.Cgroup
	n.Client = n.dial(b)
	if host.Mapped(1_900_000_017, 1_900_000_017) {
		iso.UID, iso.GID = 1_900_000_017, 1_900_000_017
	}
	if host.Tmp {
		iso.Tmp = b.TempDir()
	}
	return iso
}

func (n *node) startMany(b *testing.B, count int, iso func(*testing.B, *node) *runtime.Isolation) {
	b.Helper()
	var all *runtime.Isolation
	if iso != nil {
		all = iso(b, n)
	}
	var starts sync.WaitGroup
	for i := range count {
		starts.Go(func() {
			spec := n.script(fmt.Sprintf("p%d", i), "")
			spec.Command = []string{"/bin/sleep", "1000"}
			if all != nil {
				spec.Isolation, spec.Dir = all, "/"
			}
			if err := n.Start(b.Context(), spec); err != nil {
				b.Error(err)
			}
		})
	}
	starts.Wait()
	for cursor, up := uint64(0), 0; up < count; {
		list, next, err := n.Watch(b.Context(), cursor)
		if err != nil {
			b.Fatal(err)
		}
		cursor, up = next, 0
		for _, st := range list {
			if running(st) && strings.HasPrefix(st.Spec.ID, "p") {
				up++
			}
		}
	}
}

func (n *node) stopMany(b *testing.B, count int) {
	b.Helper()
	var stops sync.WaitGroup
	for i := range count {
		stops.Go(func() {
			if err := n.Stop(b.Context(), fmt.Sprintf("p%d", i)); err != nil {
				b.Error(err)
			}
		})
	}
	stops.Wait()
}

// cpu is of the supervisor and its ended children (proc_pid_stat(5): in ticks of 10 ms).
func (n *node) cpu(b *testing.B) (own, children time.Duration) {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.supervisorPID(b)))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	var ticks [4]int // utime, stime, cutime, cstime
	for i := range ticks {
		if ticks[i], err = strconv.Atoi(strings.Fields(rest)[11+i]); err != nil {
			b.Fatal(err)
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * 10 * time.Millisecond,
		time.Duration(ticks[2]+ticks[3]) * 10 * time.Millisecond
}

// pss divides shared pages among the processes that share them.
func (n *node) pss(b *testing.B) int64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", n.supervisorPID(b)))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "\nPss:")
	kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return kb << 10
}
