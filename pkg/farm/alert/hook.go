package alert

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/rcfarm/rcfarm/pkg/obs"
)

// Bounds of a Hook.
const (
	maxWaiting  = 10_000          // incidents that wait to be told, or to be asked for again after that
	hookWorkers = 4               // incidents told at once
	hookMin     = time.Second     // pause after the first failure of one incident
	hookMax     = time.Minute     // and after many
	staleAfter  = 2 * time.Minute // for which nobody asked that the beginning of an incident be told: another farm may tell it, and its end
)

// The status of a Message.
const (
	Firing   = "firing"
	Resolved = "resolved"
)

// Message is what a webhook is sent about an incident, as JSON. docs/running.md shows one.
type Message struct {
	Key        string     `json:"key"`    // of the incident; the same in each message about it, also from another farm
	Status     string     `json:"status"` // firing or resolved
	Kind       string     `json:"kind"`   // a condition
	Subject    string     `json:"subject"`
	RCID       string     `json:"rc_id,omitempty"` // absent: it is about no controller
	Reason     string     `json:"reason"`
	Since      time.Time  `json:"since"`
	ResolvedAt *time.Time `json:"resolved_at,omitempty"`
	Farm       string     `json:"farm"`    // that tells it
	Runbook    string     `json:"runbook"` // the section that says what to do
}

// message is what is sent about an incident.
func (in Incident) message(resolved bool) Message {
	m := Message{
		Key: in.Key, Status: Firing, Kind: string(in.Type), Subject: in.RCID, RCID: in.RCID, Reason: in.Reason, Since: in.Since,
		Farm: in.Farm, Runbook: "docs/runbook.md#" + strings.ToLower(string(in.Type)),
	}
	if m.Subject == "" { // the key begins with it: see rc.IncidentKey
		m.Subject, _, _ = strings.Cut(in.Key, "/"+string(in.Type)+"/")
	}
	if resolved {
		m.Status, m.ResolvedAt = Resolved, in.ResolvedAt
	}
	return m
}

// HookConfig is what a Hook needs.
type HookConfig struct {
	// Post sends a message, and returns nil once the other side has taken it.
	Post func(ctx context.Context, m Message) error
	// Told is called when something about a controller was told, so that its owner looks at it and stores that.
	Told    func(rcID string)
	Log     obs.Logger
	Metrics *HookMetrics
}

// HookMetrics count what a Hook does.
type HookMetrics struct {
	deliveries *prometheus.CounterVec
	pending    prometheus.Gauge
}

type delivery string

const (
	delivered delivery = "delivered"
	failed    delivery = "failed"
	dropped   delivery = "dropped"
)

// NewHookMetrics makes and registers them.
func NewHookMetrics(reg prometheus.Registerer) *HookMetrics {
	m := obs.NewMeter(reg, "farm")
	return &HookMetrics{
		deliveries: obs.Counters(m, "alert_deliveries_total", "Messages to --alert-webhook: delivered, failed (tried again), dropped (too many waited; asked for again by the next look)", "outcome", delivered, failed, dropped),
		pending:    m.Gauge("alerts_pending", "Incidents, or ends of incidents, that --alert-webhook has not taken yet"),
	}
}

// Hook is an Alerter that sends messages, apart from the looks that find what to tell. It keeps the latest of each
// incident. What it was asked to tell counts as told once the other side has taken it; until then nobody stores it as
// told, so that a successor tells it again (P7).
type Hook struct {
	cfg   HookConfig
	queue workqueue.TypedRateLimitingInterface[string] // keys of incidents; one is told by one worker at a time

	mu      sync.Mutex
	waiting map[string]*telling // by key
	untaken int                 // of waiting
	failing bool
}

// telling is the latest of one incident.
type telling struct {
	in       Incident
	resolved bool
	asked    time.Time // when it was last
	taken    bool      // by the other side
}

// NewHook returns one that sends nothing before Run.
func NewHook(cfg HookConfig) *Hook {
	return &Hook{cfg: cfg, waiting: map[string]*telling{}, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](hookMin, hookMax))}
}

// Raise implements Alerter.
func (h *Hook) Raise(ctx context.Context, in Incident) bool { return h.tell(ctx, in, false) }

// Resolve implements Alerter.
func (h *Hook) Resolve(ctx context.Context, in Incident) bool { return h.tell(ctx, in, true) }

// tell notes what is to be told, and reports whether it was. It waits for nothing.
func (h *Hook) tell(ctx context.Context, in Incident, resolved bool) (told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.waiting[in.Key]
	switch {
	case t == nil && !h.room():
		h.cfg.Metrics.deliveries.WithLabelValues(string(dropped)).Inc()
		return false
	case t == nil, resolved && !t.resolved:
		if t == nil || t.taken {
			h.untaken++
		}
		h.waiting[in.Key] = &telling{in: in, resolved: resolved, asked: time.Now()}
		h.log(ctx, in, resolved)
		h.queue.Forget(in.Key)
		h.queue.Add(in.Key)
	case t.taken:
		delete(h.waiting, in.Key) // whoever asks remembers it from here on
		told = true
	case t.resolved == resolved:
		t.in, t.asked = in, time.Now()
	}
	h.count()
	return told
}

func (h *Hook) log(ctx context.Context, in Incident, resolved bool) {
	if resolved {
		Log{Logger: h.cfg.Log}.Resolve(ctx, in)
	} else {
		Log{Logger: h.cfg.Log}.Raise(ctx, in)
	}
}

// room reports whether one more may wait. What was taken and is not asked for any more is forgotten where there is
// none. The caller holds the mutex.
func (h *Hook) room() bool {
	if len(h.waiting) >= maxWaiting {
		for key, t := range h.waiting {
			if t.taken {
				delete(h.waiting, key)
			}
		}
	}
	return len(h.waiting) < maxWaiting
}

// count shows how many the other side has not taken. The caller holds the mutex.
func (h *Hook) count() { h.cfg.Metrics.pending.Set(float64(h.untaken)) }

// Run sends until ctx ends, and returns its cause. What was not taken by then is told by whoever comes next.
func (h *Hook) Run(ctx context.Context) error {
	var group errgroup.Group
	for range hookWorkers {
		group.Go(func() error {
			for {
				key, down := h.queue.Get()
				if down {
					return nil
				}
				h.send(ctx, key)
				h.queue.Done(key)
			}
		})
	}
	<-ctx.Done()
	h.queue.ShutDown()
	_ = group.Wait() // no worker returns an error
	return context.Cause(ctx)
}

// send sends the latest of one incident.
func (h *Hook) send(ctx context.Context, key string) {
	t := h.latest(key)
	if t == nil || ctx.Err() != nil {
		return
	}
	err := h.cfg.Post(ctx, t.in.message(t.resolved))
	if ctx.Err() != nil {
		return
	}
	h.ended(key, t, err)
	if err == nil && t.in.RCID != "" {
		h.cfg.Told(t.in.RCID)
	}
}

// latest returns what there is to send about an incident, nil for nothing.
func (h *Hook) latest(key string) *telling {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.waiting[key]
	switch {
	case t == nil || t.taken:
		return nil
	case !t.resolved && time.Since(t.asked) > staleAfter:
		delete(h.waiting, key)
		h.untaken--
		h.count()
		return nil
	}
	sent := *t
	return &sent
}

// ended notes what became of a message. Where something later is to be told by now, that is sent next.
func (h *Hook) ended(key string, sent *telling, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.count()
	if err != nil {
		h.cfg.Metrics.deliveries.WithLabelValues(string(failed)).Inc()
		if !h.failing {
			h.cfg.Log.WithError(err).WithField(obs.Incident, key).Warn("the alert webhook does not take alerts; trying again, and saying so when it does")
		}
		h.failing = true
		h.queue.AddRateLimited(key)
		return
	}
	h.cfg.Metrics.deliveries.WithLabelValues(string(delivered)).Inc()
	if h.failing {
		h.failing = false
		h.cfg.Log.Info("the alert webhook takes alerts again")
	}
	if t := h.waiting[key]; t != nil && t.resolved == sent.resolved {
		t.taken = true
		h.untaken--
		h.queue.Forget(key)
	}
}
