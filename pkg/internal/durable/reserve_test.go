package durable_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/internal/disktest"
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
)

const reserved = 1 << 20

func TestReserve(t *testing.T) {
	disktest.Run(t, 8<<20, func(t *testing.T, disk string) {
		used := 0
		r := &durable.Reserve{Dir: filepath.Join(disk, "reserve"), Used: func() { used++ }}
		path := filepath.Join(disk, "record")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Fill(); n != reserved || err != nil {
			t.Fatalf("%d bytes set aside, %v", n, err)
		}
		filler := disktest.Fill(t, disk)
		if err := durable.WriteFile(path, []byte("lost")); !durable.Full(err) {
			t.Fatalf("the disk is not full: %v", err)
		}
		// One that is longer than a piece takes several; what filled the disk goes on filling it.
		for i, length := range []int{0, 1, 5000, 16 << 10, 50_000} {
			want := bytes.Repeat([]byte{byte('a' + i)}, length)
			if err := r.WriteFile(path, want); err != nil {
				t.Fatalf("%d bytes: %v", length, err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes are %d, %v", length, len(got), err)
			}
			if err := os.Rename(disktest.Fill(t, disk), filler+string(rune('a'+i))); err != nil { // Fill makes the file anew
				t.Fatal(err)
			}
		}
		if n, err := r.Fill(); n >= reserved || !durable.Full(err) || used < 4 {
			t.Fatalf("on a full disk: %d bytes set aside after %d uses, %v", n, used, err)
		}

		// When all is used up, the old record stays and nothing half-written is left.
		if err := os.RemoveAll(r.Dir); err != nil {
			t.Fatal(err)
		}
		disktest.Fill(t, disk)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.WriteFile(path, []byte("more")); !durable.Full(err) {
			t.Fatalf("written to nowhere: %v", err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, before) {
			t.Errorf("the record is %q, %v", got, err)
		}
		if left, err := filepath.Glob(filepath.Join(disk, "*"+durable.TempSuffix)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if err := os.Remove(filler + "a"); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Fill(); n != reserved || err != nil {
			t.Errorf("with room again, %d bytes are set aside, %v", n, err)
		}
	})
}

func TestNoReserve(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	var r *durable.Reserve
	if err := r.WriteFile(path, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := (&durable.Reserve{Dir: path}).WriteFile(path, []byte("y")); err != nil {
		t.Fatal(err)
	}
	if _, err := (&durable.Reserve{Dir: path}).Fill(); err == nil {
		t.Error("room was set aside in a file")
	}
}
