package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/internal/webhook"
)

type question struct {
	Service string `json:"service"`
	Stage   int    `json:"stage"`
}

// gate starts a server that answers with one status.
func gate(t *testing.T, said string, status int) (addr string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, err := io.ReadAll(r.Body)
		var q question
		if err != nil || json.Unmarshal(body, &q) != nil || q != (question{"web", 2}) || r.Method != http.MethodPost ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("asked %s %q, %v", r.Method, body, err)
		}
		if status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, said)
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

func ask(t *testing.T, addr string) error {
	t.Helper()
	return webhook.Ask(t.Context(), addr, time.Minute, question{"web", 2})
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "", 202: "", 302: "302 Found: not today", 403: "403 Forbidden: not today", 429: "429 Too Many Requests",
		502: "502 Bad Gateway: not today",
	} {
		addr, asked := gate(t, "not\n today", status)
		err := ask(t, addr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || asked.Load() != 1 {
			t.Errorf("%d: %v, asked %d times, want %q", status, err, asked.Load(), want)
		}
	}
}

func TestALongAnswerIsCut(t *testing.T) {
	t.Parallel()
	addr, _ := gate(t, strings.Repeat("no ", 100_000), 400)
	if err := ask(t, addr); err == nil || len(err.Error()) > 500 {
		t.Errorf("%d bytes of %v", len(err.Error()), err)
	}
}

// If a gate does not answer, Ask ends after its timeout, or when the context ends.
func TestAGateThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(hang) }) // runs first, because the server waits for its handlers when it is closed
	err := webhook.Ask(t.Context(), s.URL, 20*time.Millisecond, nil)
	if err == nil || !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Errorf("%v", err)
	}
	why := errors.New("aborted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := webhook.Ask(ctx, s.URL, time.Minute, nil); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

func TestInvalidURLsAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", "gate", "ftp://x/y", "http://", "http://user:word@gate/x", "http://[",
		"file:///etc",
	} {
		err := webhook.CheckURL("update.gates.before_stage", bad)
		var at *field.Error
		if !errors.As(err, &at) || at.Field != "update.gates.before_stage" || at.Value != bad {
			t.Errorf("%q: %v", bad, err)
		}
		if webhook.Ask(t.Context(), bad, time.Minute, nil) == nil {
			t.Errorf("%q was asked", bad)
		}
	}
	if err := webhook.CheckURL("url", "https://gate.example:8443/check?x=1"); err != nil {
		t.Error(err)
	}
}
