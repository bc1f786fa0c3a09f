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

// ErrHung means that a server does not answer any more after a restore. This happens now and then (seen with 1.20.1):
// if one of Consul's own controllers subscribes during a restore, Consul's store of resources and the publisher of
// their changes wait for each other's locks. They subscribe after a start and after a restore.
var ErrHung = errors.New("a server hangs in a restore")

const (
	restoreLimit = 20 * time.Second // a restore takes a tenth of a second
	restoreTries = 5
)

// Snapshot returns a snapshot of a server's store.
func Snapshot(ctx context.Context, addr string) ([]byte, error) {
	return snapshot(ctx, http.MethodGet, addr, nil)
}

// Restore returns ErrHung if the server hangs.
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

// DespiteHangs runs an experiment again if it panics with ErrHung. Each run must start its own server.
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
