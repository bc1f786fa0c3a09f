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

const (
	maxWaiting  = 10_000      // incidents that wait for their delivery, or for the next call after it
	hookWorkers = 4           // messages sent at the same time
	hookMin     = time.Second // pause after the first failure of one incident
	hookMax     = time.Minute // pause after many failures
	// staleAfter is how long the hook tries to send a beginning after the last Raise. Then another farm probably owns
	// the controller, and may have sent the beginning and even the end.
	staleAfter = 2 * time.Minute
)

// The status of a Message.
const (
	Firing   = "firing"
	Resolved = "resolved"
)

// Message is what a webhook gets about an incident, as JSON. docs/running.md shows one.
type Message struct {
	Key        string     `json:"key"`    // of the incident; the same in all messages about it, from all farms
	Status     string     `json:"status"` // firing or resolved
	Kind       string     `json:"kind"`   // a condition
	Subject    string     `json:"subject"`
	RCID       string     `json:"rc_id,omitempty"` // absent: it is about no controller
	Reason     string     `json:"reason"`
	Since      time.Time  `json:"since"`
	ResolvedAt *time.Time `json:"resolved_at,omitempty"`
	Farm       string     `json:"farm"`    // that sends it
	Runbook    string     `json:"runbook"` // the section with what to do
}

func (i Incident) message(resolved bool) Message {
	m := Message{
		Key: i.Key, Status: Firing, Kind: string(i.Type), Subject: i.RCID, RCID: i.RCID, Reason: i.Reason,
		Since: i.Since, Farm: i.Farm, Runbook: "docs/runbook.md#" + strings.ToLower(string(i.Type)),
	}
	if m.Subject == "" { // the key begins with the subject: see rc.IncidentKey
		m.Subject, _, _ = strings.Cut(i.Key, "/"+string(i.Type)+"/")
	}
	if resolved {
		m.Status, m.ResolvedAt = Resolved, i.ResolvedAt
	}
	return m
}

// HookConfig is what a Hook needs.
type HookConfig struct {
	// Post sends a message. It returns nil if the receiver has accepted it.
	Post func(ctx context.Context, m Message) error
	// OnDelivered is called after a message about a controller was delivered. A look must follow, which stores that.
	OnDelivered func(rcID string)
	Log         obs.Logger
	Metrics     *HookMetrics
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

// NewHookMetrics registers the metrics of a Hook.
func NewHookMetrics(reg prometheus.Registerer) *HookMetrics {
	m := obs.NewMeter(reg, "farm")
	return &HookMetrics{
		deliveries: obs.Counters(m, "alert_deliveries_total",
			"Messages to --alert-webhook: delivered, failed (tried again), "+
				"dropped (too many waited; the next look sends them again)",
			"outcome", delivered, failed, dropped),
		pending: m.Gauge("alerts_pending",
			"Incidents, or ends of incidents, that --alert-webhook has not accepted yet"),
	}
}

// Hook is an Alerter that posts messages to a webhook, from its own goroutines, so that looks do not wait. Raise and
// Resolve report a delivery only after the receiver has accepted the message. Until then the next owner sends it again
// (P7).
type Hook struct {
	cfg   HookConfig
	queue workqueue.TypedRateLimitingInterface[string] // keys of incidents; each is with one worker at a time

	mu      sync.Mutex
	waiting map[string]*pending // by key
	left    int                 // how many of waiting are not accepted
	failing bool
}

type pending struct {
	in       Incident
	resolved bool
	asked    time.Time // of the last Raise or Resolve
	accepted bool      // by the receiver
}

// NewHook returns a Hook that sends nothing before Run.
func NewHook(cfg HookConfig) *Hook {
	return &Hook{cfg: cfg, waiting: map[string]*pending{}, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](hookMin, hookMax))}
}

// Raise implements Alerter.
func (h *Hook) Raise(ctx context.Context, in Incident) bool { return h.add(ctx, in, false) }

// Resolve implements Alerter.
func (h *Hook) Resolve(ctx context.Context, in Incident) bool { return h.add(ctx, in, true) }

// add reports whether the receiver has accepted the message already.
func (h *Hook) add(ctx context.Context, in Incident, resolved bool) (accepted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.waiting[in.Key]
	switch {
	case p == nil && h.full():
		h.cfg.Metrics.deliveries.WithLabelValues(string(dropped)).Inc()
		return false
	case p == nil, resolved && !p.resolved:
		if p == nil || p.accepted {
			h.left++
		}
		h.waiting[in.Key] = &pending{in: in, resolved: resolved, asked: time.Now()}
		h.log(ctx, in, resolved)
		h.queue.Forget(in.Key)
		h.queue.Add(in.Key)
	case p.accepted:
		delete(h.waiting, in.Key) // the caller remembers the delivery from now on
		accepted = true
	case p.resolved == resolved:
		p.in, p.asked = in, time.Now()
	}
	h.count()
	return accepted
}

func (h *Hook) log(ctx context.Context, in Incident, resolved bool) {
	if resolved {
		Log{Logger: h.cfg.Log}.Resolve(ctx, in)
	} else {
		Log{Logger: h.cfg.Log}.Raise(ctx, in)
	}
}

// full forgets accepted messages if there are too many. It needs the mutex.
func (h *Hook) full() bool {
	if len(h.waiting) >= maxWaiting {
		for key, p := range h.waiting {
			if p.accepted {
				delete(h.waiting, key)
			}
		}
	}
	return len(h.waiting) >= maxWaiting
}

// count needs the mutex.
func (h *Hook) count() { h.cfg.Metrics.pending.Set(float64(h.left)) }

// Run sends until ctx ends, and returns its cause.
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

func (h *Hook) send(ctx context.Context, key string) {
	p := h.latest(key)
	if p == nil || ctx.Err() != nil {
		return
	}
	err := h.cfg.Post(ctx, p.in.message(p.resolved))
	if ctx.Err() != nil {
		return
	}
	h.ended(key, p, err)
	if err == nil && p.in.RCID != "" {
		h.cfg.OnDelivered(p.in.RCID)
	}
}

func (h *Hook) latest(key string) *pending {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.waiting[key]
	switch {
	case p == nil || p.accepted:
		return nil
	case !p.resolved && time.Since(p.asked) > staleAfter:
		delete(h.waiting, key)
		h.left--
		h.count()
		return nil
	}
	sent := *p
	return &sent
}

func (h *Hook) ended(key string, sent *pending, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.count()
	if err != nil {
		h.cfg.Metrics.deliveries.WithLabelValues(string(failed)).Inc()
		if !h.failing {
			h.cfg.Log.WithError(err).WithField(obs.Incident, key).
				Warn("the alert webhook does not accept alerts; trying again")
		}
		h.failing = true
		h.queue.AddRateLimited(key)
		return
	}
	h.cfg.Metrics.deliveries.WithLabelValues(string(delivered)).Inc()
	if h.failing {
		h.failing = false
		h.cfg.Log.Info("the alert webhook accepts alerts again")
	}
	if p := h.waiting[key]; p != nil && p.resolved == sent.resolved {
		p.accepted = true
		h.left--
		h.queue.Forget(key)
	}
}
