package alert_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/obs"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// receiver receives the messages of a hook.
type receiver struct {
	mu       sync.Mutex
	messages []string // status and key of each accepted message
	fails    error    // returned as long as it is set
	hang     chan struct{}
	looks    []string // controllers whose owners were asked to look
}

func (r *receiver) post(ctx context.Context, m alert.Message) error {
	r.mu.Lock()
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return r.fails
	}
	r.messages = append(r.messages, m.Status+" "+m.Key)
	return nil
}

func (r *receiver) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *receiver) accepted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

// startHook runs a hook until stop is called, on the clock of synctest.
func startHook(t *testing.T, r *receiver) (h *alert.Hook, reg *prometheus.Registry, log *strings.Builder, stop func()) {
	t.Helper()
	log, reg = &strings.Builder{}, prometheus.NewRegistry()
	logger, err := obs.NewLogger(log, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	h = alert.NewHook(alert.HookConfig{
		Post: r.post, OnDelivered: func(id string) { r.set(func() { r.looks = append(r.looks, id) }) },
		Log: logger, Metrics: alert.NewHookMetrics(reg),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Run(ctx) }()
	return h, reg, log, func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		synctest.Wait()
	}
}

func incident(key string) alert.Incident {
	return alert.Incident{RCID: "web", Farm: "f1", Incident: rc.Incident{
		Key: key, Type: rc.NodeLost, Reason: "n1 is gone", Since: start,
	}}
}

// Raise and Resolve report a delivery only after the receiver has accepted the message, and they do not wait for the
// receiver.
func TestAnAlertIsDeliveredOnceTheReceiverAcceptsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{fails: errors.New("down")}
		h, reg, log, stop := startHook(t, r)
		defer stop()
		began := time.Now()
		for range 100 {
			if h.Raise(t.Context(), incident("k")) {
				t.Fatal("delivered, but the receiver accepted nothing")
			}
		}
		if time.Since(began) > 0 {
			t.Error("Raise waited")
		}
		for range 60 { // looks call again for an hour
			<-time.After(time.Minute)
			if h.Raise(t.Context(), incident("k")) {
				t.Fatal("delivered, but the receiver accepted nothing")
			}
		}
		r.set(func() { r.fails = nil })
		<-time.After(2 * time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"firing k"}) || !slices.Equal(r.looks, []string{"web"}) {
			t.Errorf("accepted %v, looks %v", got, r.looks)
		}
		if !h.Raise(t.Context(), incident("k")) {
			t.Error("not delivered, but the receiver accepted it")
		}
		for _, line := range []string{"alert raised", "does not accept", "accepts alerts again"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%q is %d times in\n%s", line, n, log)
			}
		}
		want := `
# HELP rcfarm_farm_alerts_pending Incidents, or ends of incidents, that --alert-webhook has not accepted yet
# TYPE rcfarm_farm_alerts_pending gauge
rcfarm_farm_alerts_pending 0
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rcfarm_farm_alerts_pending"); err != nil {
			t.Error(err)
		}
		end := incident("k")
		end.ResolvedAt = &start
		h.Resolve(t.Context(), end)
		synctest.Wait()
		if !h.Resolve(t.Context(), end) || !slices.Equal(r.accepted(), []string{"firing k", "resolved k"}) {
			t.Errorf("accepted %v", r.accepted())
		}
	})
}

// Only the latest message about an incident is sent, and never its beginning after its end.
func TestOnlyTheLatestMessageIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{fails: errors.New("down")}
		h, _, _, stop := startHook(t, r)
		defer stop()
		h.Raise(t.Context(), incident("never-accepted"))
		<-time.After(time.Minute)
		h.Resolve(t.Context(), incident("never-accepted"))
		h.Raise(t.Context(), incident("never-accepted")) // a look that is late
		r.set(func() { r.fails = nil })
		<-time.After(2 * time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"resolved never-accepted"}) {
			t.Errorf("accepted %v", got)
		}
		// An incident ends while the message about its beginning is under way.
		r.set(func() { r.messages, r.hang = nil, make(chan struct{}) })
		h.Raise(t.Context(), incident("k"))
		synctest.Wait()
		h.Resolve(t.Context(), incident("k"))
		synctest.Wait()
		close(r.hang)
		r.set(func() { r.hang = nil })
		synctest.Wait()
		if got := r.accepted(); !slices.Equal(got, []string{"firing k", "resolved k"}) {
			t.Errorf("accepted %v", got)
		}
	})
}

// If no look calls Raise any more, another farm owns the controller. It may have sent the beginning and the end, so the
// hook drops the beginning.
func TestABeginningThatNoLookAsksForIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{fails: errors.New("down")}
		h, _, _, stop := startHook(t, r)
		defer stop()
		h.Raise(t.Context(), incident("moved"))
		h.Resolve(t.Context(), incident("over"))
		<-time.After(10 * time.Minute)
		r.set(func() { r.fails = nil })
		<-time.After(10 * time.Minute)
		if got := r.accepted(); !slices.Equal(got, []string{"resolved over"}) {
			t.Errorf("accepted %v", got)
		}
	})
}

// If too many messages wait, the hook takes no more. Later looks call again.
func TestTheNumberOfWaitingMessagesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{hang: make(chan struct{})}
		h, reg, _, stop := startHook(t, r)
		defer stop()
		for i := range 10_001 {
			h.Raise(t.Context(), incident(fmt.Sprint(i)))
		}
		if h.Raise(t.Context(), incident("one more")) {
			t.Error("delivered, but the queue was full")
		}
		want := `
# HELP rcfarm_farm_alerts_pending Incidents, or ends of incidents, that --alert-webhook has not accepted yet
# TYPE rcfarm_farm_alerts_pending gauge
rcfarm_farm_alerts_pending 10000
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "rcfarm_farm_alerts_pending"); err != nil {
			t.Error(err)
		}
		close(r.hang)
		synctest.Wait()
		h.Raise(t.Context(), incident("one more"))
		synctest.Wait()
		if n := len(r.accepted()); n != 10_001 || !h.Raise(t.Context(), incident("one more")) {
			t.Errorf("%d accepted", n)
		}
	})
}

// docs/running.md shows this form of the message.
func TestTheFormOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		var mu sync.Mutex
		log, err := obs.NewLogger(io.Discard, "info", "text")
		if err != nil {
			t.Fatal(err)
		}
		h := alert.NewHook(alert.HookConfig{
			Post: func(_ context.Context, m alert.Message) error {
				data, err := json.Marshal(m)
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, string(data))
				return err
			},
			OnDelivered: func(string) {}, Log: log, Metrics: alert.NewHookMetrics(prometheus.NewRegistry()),
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Run(ctx) }()
		h.Raise(ctx, incident("web/NodeLost/1767323045000"))
		synctest.Wait()
		over := alert.Incident{Farm: "f1", Incident: rc.Incident{
			Key: "shop/RolloutTrouble/1767323045000", Type: rc.RolloutTrouble, Reason: "failed", Since: start,
			ResolvedAt: &start,
		}}
		h.Resolve(ctx, over)
		synctest.Wait()
		cancel()
		<-ended
		want := []string{
			`{"key":"web/NodeLost/1767323045000","status":"firing","kind":"NodeLost","subject":"web","rc_id":"web","reason":"n1 is gone","since":"2026-01-02T03:04:05Z","farm":"f1","runbook":"docs/runbook.md#nodelost"}`,
			`{"key":"shop/RolloutTrouble/1767323045000","status":"resolved","kind":"RolloutTrouble","subject":"shop","reason":"failed","since":"2026-01-02T03:04:05Z","resolved_at":"2026-01-02T03:04:05Z","farm":"f1","runbook":"docs/runbook.md#rollouttrouble"}`,
		}
		if !slices.Equal(sent, want) {
			t.Errorf("sent\n%s\nwant\n%s", strings.Join(sent, "\n"), strings.Join(want, "\n"))
		}
	})
}
