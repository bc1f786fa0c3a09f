package preparer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/consultest"
	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/pod"
	"github.com/rcfarm/rcfarm/pkg/preparer"
	"github.com/rcfarm/rcfarm/pkg/preparer/artifact"
)

func (b *bench) realArtifacts(cfg artifact.Config) *artifact.Store {
	b.t.Helper()
	cfg.Dir = filepath.Join(filepath.Dir(b.cfg.Dir), "store")
	s, err := artifact.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.cfg.Artifacts, b.cfg.Cache = s, s
	b.cfg.PruneArtifacts = 50 * time.Millisecond
	return s
}

// packed returns the manifest of server, with the path of an archive that has ballast.
func (b *bench) packed(version string, ballast int) (manifest.Manifest, string) {
	b.t.Helper()
	script := "#!/bin/sh\nexec " + testBinary() + " " + serveArg + "\n"
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for name, content := range map[string]string{
		"bin/launch": script, "version": version, "ballast": strings.Repeat("\x00", ballast),
	} {
		err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = tw.Write([]byte(content))
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		b.t.Fatal(err)
	}
	file := filepath.Join(b.t.TempDir(), "a.tar.gz")
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		b.t.Fatal(err)
	}
	sum := sha256.Sum256(buf.Bytes())
	m := b.server(version)
	m.Launchables[0].Artifact = manifest.Artifact{
		Kind: manifest.ArtifactTar, URL: "file://" + file, SHA256: hex.EncodeToString(sum[:]),
	}
	return m, file
}

// If a process cannot start because its artifact is missing or incomplete, the node fetches it again, and reports the
// reason until then.
func TestBrokenArtifactsAreFetchedAgain(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(dir string) error{
		"gone":    os.RemoveAll,
		"damaged": func(dir string) error { return os.Remove(filepath.Join(dir, "bin", "launch")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			cache := b.realArtifacts(artifact.Config{
				FinalWait: 100 * time.Millisecond, MaxFinalWait: 100 * time.Millisecond,
			})
			reg := prometheus.NewRegistry()
			b.cfg.Metrics = preparer.NewMetrics(reg)
			b.start()
			m, file := b.packed("1", 0)
			soon := field.Duration(100 * time.Millisecond)
			m.Launchables[0].Restart = &manifest.Restart{BackoffMin: &soon, BackoffMax: &soon}
			digest := b.upload(m)
			b.write(intent(0, digest, pod.Running, 10))
			b.awaitReady(0, digest, 10)
			dir, err := cache.Ensure(t.Context(), m.Launchables[0].Artifact)
			if err != nil {
				t.Fatal(err)
			}

			// Its source is away, so it stays broken.
			pid := b.pid(0)
			if err := errors.Join(
				os.Rename(file, file+".away"), os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, "bin"), 0o755),
				spoil(dir),
			); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			b.awaitState(0, pod.StateFailed, 10, "artifact of main")
			if err := os.Rename(file+".away", file); err != nil {
				t.Fatal(err)
			}
			b.awaitReady(0, digest, 10)
			if name == "damaged" { // a missing artifact is fetched like a new one, so it is not counted
				b.eventually(func() error { return metric(reg, "rcfarm_preparer_artifacts_restored_total", 1) })
			}
		})
	}
}

// metric compares a metric without labels.
func metric(reg *prometheus.Registry, name string, want float64) error {
	families, err := reg.Gather()
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		if m := f.GetMetric()[0]; m.GetGauge().GetValue()+m.GetCounter().GetValue() == want {
			return nil
		}
		return fmt.Errorf("%s is %v, want %v", name, f.GetMetric(), want)
	}
	return fmt.Errorf("no metric %s: %w", name, err)
}

func TestUnneededArtifactsArePruned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.realArtifacts(artifact.Config{CacheBytes: 1})
	dir := filepath.Join(filepath.Dir(b.cfg.Dir), "store")
	b.start()
	var all []manifest.Manifest
	for i := range 5 {
		m, _ := b.packed(fmt.Sprint(i), 0)
		digest := b.upload(m)
		b.write(intent(0, digest, pod.Running, int64(10+i)))
		b.awaitReady(0, digest, int64(10+i))
		all = append(all, m)
	}
	b.eventually(func() error { // the last three versions stay installed
		for i, m := range all {
			_, err := os.Stat(filepath.Join(dir, m.Launchables[0].Artifact.SHA256))
			if kept := i >= 2; kept != (err == nil) {
				return fmt.Errorf("artifact %d: %w", i, errors.Join(err, errStays))
			}
		}
		return nil
	})
	b.write(intent(0, "", pod.Stopped, 20))
	b.awaitState(0, pod.StateStopped, 20, "")
	b.eventually(func() error {
		for _, m := range all {
			_, err := os.Stat(filepath.Join(dir, m.Launchables[0].Artifact.SHA256))
			if !errors.Is(err, fs.ErrNotExist) {
				return errors.Join(err, errStays)
			}
		}
		return nil
	})
}

// While the disk is full, the node starts no new pod, running pods continue to run and can be stopped, no record is
// lost, and the report has the reason. With space again, the node continues.
func TestFullDiskStopsNothing(t *testing.T) {
	consultest.Shared(t) // started before TMPDIR changes, so that its files are elsewhere
	disktest.Run(t, 12<<20, func(t *testing.T, disk string) {
		t.Setenv("TMPDIR", disk)
		b := newBench(t)
		b.realArtifacts(artifact.Config{ReserveBytes: -1})
		t.Setenv("TMPDIR", "/tmp")
		a := b.start()
		old, _ := b.packed("old", 0)
		oldDigest := b.upload(old)
		b.write(intent(0, oldDigest, pod.Running, 10))
		b.awaitReady(0, oldDigest, 10)
		pid := b.pid(0)

		// There is space for records, but not for an artifact.
		filler := disktest.Fill(t, disk)
		next, _ := b.packed("next", 2<<20)
		nextDigest := b.upload(next)
		b.write(intent(0, nextDigest, pod.Running, 20))
		b.awaitState(0, pod.StateFailed, 20, "not enough disk space")
		b.mustKeepPID(0, pid)

		a.stop() // before the disk is filled, because a failed fetch frees its space
		disktest.Fill(t, disk)
		a = b.start()
		b.awaitServing()
		b.awaitState(0, pod.StateFailed, 20, "")
		b.mustKeepPID(0, pid)
		disktest.Fill(t, disk)
		b.write(intent(0, nextDigest, pod.Stopped, 30))
		b.awaitState(0, pod.StateStopped, 30, "")

		// A pod whose tombstone cannot be written stops nevertheless. The stop is confirmed when there is space.
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		b.write(intent(0, oldDigest, pod.Running, 40))
		b.awaitReady(0, oldDigest, 40)
		pid = b.pid(0)
		a.stop()
		spares, err := filepath.Glob(b.inNode("pods/*" + durable.SpareSuffix))
		if err != nil || len(spares) != 1 {
			t.Fatalf("%v, %v; want a spare file of the pod's record", spares, err)
		}
		if err := os.Truncate(spares[0], 0); err != nil { // removes the space that was reserved for the record
			t.Fatal(err)
		}
		disktest.Fill(t, disk)
		a = b.start()
		b.write(intent(0, nextDigest, pod.Stopped, 50))
		b.awaitReality(0, "that the stop cannot be recorded", func(r pod.Reality) bool {
			return r.State == pod.StateFailed && r.Revision == 40 &&
				strings.Contains(r.Message, "cannot write to its disk")
		})
		b.eventually(func() error {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("process %d is still there: %w", pid, err)
			}
			return nil
		})
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		b.awaitState(0, pod.StateStopped, 50, "")
		b.write(intent(0, nextDigest, pod.Running, 60))
		b.awaitReady(0, nextDigest, 60)
		a.stop()
	})
}
