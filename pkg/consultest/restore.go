package consultest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// ErrHung says that a server does not answer any more after a restore. Consul does so now and then (seen with 1.20.1): while it
// restores, its store of resources and the publisher of their changes wait for each other's locks if one of its own
// controllers subscribes just then, as they do after a start and after a restore.
var ErrHung = errors.New("a server hangs in a restore")

const (
	restoreLimit = 20 * time.Second // a restore takes a tenth of a second
	restoreTries = 5
)

// Snapshot returns a snapshot of the whole store of the server at an address.
func Snapshot(ctx context.Context, addr string) ([]byte, error) {
	return snapshot(ctx, http.MethodGet, addr, nil)
}

// Restore takes the store of the server at an address back to a snapshot. It returns ErrHung when the server hangs in it.
func Restore(ctx context.Context, addr string, saved []byte) error {
	limited, cancel := context.WithTimeout(ctx, restoreLimit)
	defer cancel()
	_, err := snapshot(limited, http.MethodPut, addr, saved)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return ErrHung
	}
	return err
}

func snapshot(ctx context.Context, method, addr string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+"/v1/snapshot", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s snapshot: %s: %s", method, resp.Status, data)
	}
	return data, err
}

// DespiteHangs runs an experiment, and again when it panics with ErrHung. Each run must begin with a server of its own.
func DespiteHangs(tb testing.TB, experiment func()) {
	tb.Helper()
	for range restoreTries {
		if !hangs(experiment) {
			return
		}
		tb.Log(ErrHung)
	}
	tb.Fatalf("Consul hung in each of %d restores", restoreTries)
}

func hangs(experiment func()) (hung bool) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case ErrHung:
			hung = true
		default:
			panic(r)
		}
	}()
	experiment()
	return false
}
