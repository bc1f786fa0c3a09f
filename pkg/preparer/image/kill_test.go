package image_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/imagetest"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

// kills is how often TestKilledAnywhere kills a pull, unless the variable KILLS has another number:
//
//	KILLS=200 go test ./pkg/preparer/image -run TestKilledAnywhere -v
const kills = 50

// A pull may be killed at any instant. What it leaves has only complete trees under final names, and the next pull goes
// on from there. Each pull runs in a process of its own, which is killed after a random number of bytes were sent, or
// after a random time. The disk is in memory, because a killed process loses nothing that the kernel has.
func TestKilledAnywhere(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv("KILLS"), strconv.Itoa(kills)))
	if err != nil {
		t.Fatal(err)
	}
	disktest.Run(t, 256<<20, func(t *testing.T, disk string) { killedAnywhere(t, disk, count) })
}

func killedAnywhere(t *testing.T, disk string, count int) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	reg := imagetest.New(t)
	ref := refOf(t, reg, "web", reg.Push(t, "web", imagetest.Image{Layers: []imagetest.Layer{
		bulk(t, 1, imagetest.Dir("etc", 0o755, 0)), bulk(t, 2, imagetest.File("etc/left/out", "")),
		bulk(t, 3, imagetest.Dir("etc", 0o700, 3), imagetest.File(".wh.file1", "")), bulk(t, 4),
	}}))
	// What each tree has when nothing is killed.
	began := time.Now()
	whole := mustPull(t, reopen(t, filepath.Join(disk, "reference"), reg), ref)
	size := reg.Served()
	want := map[string]string{}
	for _, layer := range whole.Layers {
		want[filepath.Base(layer)] = fingerprint(t, layer)
	}
	dir := filepath.Join(disk, "images")
	longest := time.Since(began) + 30*time.Millisecond
	killed, finished, resumed := 0, 0, 0
	for killed < count {
		p := start(t, dir, reg.Host, ref.String())
		if random.IntN(2) == 0 {
			before, bytes := reg.Served(), random.Int64N(size)
			reg.Cut(func(int) bool {
				if reg.Served()-before >= bytes {
					p.kill()
				}
				return false
			})
		} else {
			timer := time.AfterFunc(rand.N(longest), p.kill)
			t.Cleanup(func() { timer.Stop() })
		}
		done := p.wait(t)
		reg.Cut(nil)
		if !done {
			killed++
		}
		judge(t, dir, want, done)
		for _, request := range reg.Requests() {
			if strings.Contains(request, "bytes=") {
				resumed++
			}
		}
		switch {
		case done:
			finished++
			if len(want) != len(trees(t, dir)) {
				t.Errorf("%q, want %d trees", trees(t, dir), len(want))
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		case random.IntN(3) == 0: // the next one opens what this one left, and removes unfinished work
			s, err := image.New(config(dir, reg.Host))
			if err != nil {
				t.Fatal(err)
			}
			trees(t, dir)
			mustPull(t, s, ref)
			judge(t, dir, want, true)
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d killed, %d finished, %d downloads went on", killed, finished, resumed)
	if resumed == 0 {
		t.Error("no download went on where a killed one ended")
	}
}

// bulk returns a layer that takes a while to download and to unpack.
func bulk(t *testing.T, seed uint64, entries ...imagetest.Entry) imagetest.Layer {
	t.Helper()
	for i := range 150 {
		body := string(imagetest.Noise(seed*1000+uint64(i), 4000))
		entries = append(entries, imagetest.File(fmt.Sprintf("file%d", i), body))
	}
	return imagetest.Gzip(t, imagetest.Tar(t, entries...))
}

// judge checks what a killed pull left: each tree with a final name is complete, and so is each image of index.json.
func judge(t *testing.T, dir string, want map[string]string, done bool) {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(dir, "trees"))
	if err != nil && done {
		t.Fatal(err)
	}
	complete := 0
	for _, entry := range all {
		name := entry.Name()
		if strings.HasPrefix(name, "tmp-") || strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".tmp") {
			continue
		}
		complete++
		if got := fingerprint(t, filepath.Join(dir, "trees", name)); got != want[name] {
			t.Errorf("tree %s is not complete", name)
		}
	}
	index, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if listed := bytes.Contains(index, []byte("digest")); err == nil && listed && complete != len(want) {
		t.Errorf("index.json lists the image, and %d of %d trees are there", complete, len(want))
	}
}

// process is a pull that can be killed.
type process struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	killed atomic.Bool
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")}
	// With the race detector, programs would sleep for a second before they exit.
	p.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(args, " "), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) kill() {
	p.killed.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
}

// wait reports whether the pull ended by itself, and fails the test if it failed.
func (p *process) wait(t *testing.T) (done bool) {
	t.Helper()
	err := p.cmd.Wait()
	if err != nil && !p.killed.Load() {
		t.Fatalf("%v: %s", err, p.out.String())
	}
	return err == nil
}
