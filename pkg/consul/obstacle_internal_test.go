package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"
)

// After an error that only a person can mend, the pauses grow to half a minute, and end when the token changes.
func TestPausesAfterAnErrorThatOnlyAPersonMends(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	synctest.Test(t, func(t *testing.T) {
		errStuck := errors.New("stuck")
		d := &daemon{Client: &Client{source: &tokenSource{file: file}}, SessionConfig: SessionConfig{
			Stuck: func(err error) bool { return errors.Is(err, errStuck) },
		}}
		p := newPaces()
		pause := func(err error) time.Duration {
			began := time.Now()
			if err := p.pause(t.Context(), d, 0, err); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		var total time.Duration
		for range 12 {
			total += pause(errStuck)
		}
		if last := pause(errStuck); last < stuckMax/3 || last > 2*stuckMax || total < time.Minute {
			t.Errorf("the last pause was %s, all together %s", last, total)
		}
		time.AfterFunc(time.Second, func() { write("another") })
		if got := pause(errStuck); got > 4*time.Second {
			t.Errorf("it waited for %s with another token", got)
		}
		for range 12 {
			if got := pause(errors.New("away")); got > 8*time.Second {
				t.Errorf("it waited for %s", got)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.pause(ctx, d, 0, errStuck); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestTokenRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"none":       {nil, false},
		"not found":  {fmt.Errorf("x: %w", api.StatusError{Code: http.StatusForbidden, Body: "ACL not found"}), true},
		"lost":       {fmt.Errorf("%w: x: %w", ErrLost, api.StatusError{Code: http.StatusForbidden}), true},
		"filtered":   {fmt.Errorf("x: %w", ErrFiltered), true},
		"denied":     {&RefusedError{Failures: []Failure{{What: "Permission denied"}}}, true},
		"a conflict": {&RefusedError{Failures: []Failure{{What: "index is stale"}}}, false},
		"no leader":  {api.StatusError{Code: http.StatusInternalServerError, Body: "No cluster leader"}, false},
	} {
		if got := TokenRefused(tt.err); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
