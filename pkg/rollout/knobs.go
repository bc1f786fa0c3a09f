package rollout

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/field"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

// Amount is a number of replicas, 3, or a share of those that the service has, "10%".
type Amount struct {
	Percent bool
	N       int
}

// AmountAllowed says in words what an amount may be.
var AmountAllowed = fmt.Sprintf(`a whole number of replicas from 0 to %d, or a percentage from "0%%" to "100%%"`, rc.MaxReplicas)

// check records an amount that is less than least, or more than there can be; path names its field.
func (a *Amount) check(errs *field.Errors, path string, least int) {
	if a == nil {
		return
	}
	most := rc.MaxReplicas
	if a.Percent {
		most = 100
	}
	if a.N < least || a.N > most {
		errs.Add(path, a.String(), fmt.Sprintf(`%d to %d replicas, or "%d%%" to "100%%"`, least, rc.MaxReplicas, least))
	}
}

// ParseAmount reads "3" or "10%".
func ParseAmount(text string) (Amount, error) {
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > rc.MaxReplicas || percent && n > 100 || strings.HasPrefix(digits, "+") {
		return Amount{}, &field.Error{Field: "", Value: text, Allowed: AmountAllowed}
	}
	return Amount{percent, n}, nil
}

func (a Amount) String() string {
	if a.Percent {
		return strconv.Itoa(a.N) + "%"
	}
	return strconv.Itoa(a.N)
}

// MarshalJSON writes a number, or a text that ends with %.
func (a Amount) MarshalJSON() ([]byte, error) {
	if a.Percent {
		return json.Marshal(a.String())
	}
	return json.Marshal(a.N)
}

// UnmarshalJSON reads a number, or a text that ends with %.
func (a *Amount) UnmarshalJSON(data []byte) error {
	text := string(data)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		if !strings.HasSuffix(text, "%") {
			return &field.Error{Value: text, Allowed: AmountAllowed}
		}
	}
	parsed, err := ParseAmount(text)
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}

// of returns the amount in replicas of a service that has n of them; a share is rounded down.
func (a Amount) of(n int) int {
	if a.Percent {
		return n * a.N / 100
	}
	return a.N
}

// What happens when a stage makes no progress for its timeout.
const (
	OnTimeoutRollback = "rollback"
	OnTimeoutPause    = "pause"
	OnTimeoutContinue = "continue" // go on waiting; the reason says so
)

// Orders in which a stage moves counts.
const (
	StartFirst = "start-first"
	StopFirst  = "stop-first"
)

// Defaults of the knobs.
const (
	DefaultStep            = 10 // percent, at least one replica
	DefaultStageTimeout    = 2 * time.Minute
	DefaultRevisionHistory = 10
	DefaultGateTimeout     = 10 * time.Second
	DefaultGateRetries     = 3
	PreDeployTimeout       = 5 * time.Minute
)

// Limits of the knobs, besides those of a controller.
const (
	MaxRevisionHistory = 1000
	MaxGateRetries     = 1000
)

// Knobs is how a service document says how it is rolled out: its field "update". Each has one name, there, in flags and in the documentation.
type Knobs struct {
	Strategy        string          `json:"strategy,omitempty"`         // StrategyNames; default: availability, with order stop-first resourceutil
	Order           string          `json:"order,omitempty"`            // start-first or stop-first
	Step            *Amount         `json:"step,omitempty"`             // of a stage; default 10 %, at least 1; in place a share of the pods that change
	MaxSurge        *Amount         `json:"max_surge,omitempty"`        // pods beyond the desired number; default: step, stop-first 0
	MaxUnavailable  *Amount         `json:"max_unavailable,omitempty"`  // pods that the rollout may take before their successors are available; default 0, stop-first: step
	MinAvailable    *int            `json:"min_available,omitempty"`    // default: the desired number less max_unavailable
	StageTimeout    *field.Duration `json:"stage_timeout,omitempty"`    // without any progress; default 2m
	OnTimeout       string          `json:"on_timeout,omitempty"`       // rollback (default), pause or continue
	Delay           *field.Duration `json:"delay,omitempty"`            // between stages; default none
	LeaveOld        bool            `json:"leave_old,omitempty"`        // the old controllers stay at the end, with the count 0
	RevisionHistory *int            `json:"revision_history,omitempty"` // revisions kept besides the one in effect; default 10
	Canary          *Canary         `json:"canary,omitempty"`           // strategy canary
	AutoPromote     *field.Duration `json:"auto_promote,omitempty"`     // canary, blue-green: goes on by itself after this; default: an operator has to
	KeepOld         *field.Duration `json:"keep_old,omitempty"`         // blue-green: how long the old pods stand by
	Gates           Gates           `json:"gates,omitzero"`
	GroupOrder      []string        `json:"group_order,omitempty"` // roles in the order in which they roll; default: as declared
}

// Canary is the first stage of the strategy canary.
type Canary struct {
	Pods int `json:"pods"` // default 1
}

// Gates are webhooks that have to agree.
type Gates struct {
	BeforeStage []Hook `json:"before_stage,omitempty"`
	AfterStage  []Hook `json:"after_stage,omitempty"`
}

// Hook is a URL that is asked with POST; each answer 2xx agrees.
type Hook struct {
	URL     string          `json:"url"`
	Timeout *field.Duration `json:"timeout,omitempty"` // of a try; default 10s
	Retries *int            `json:"retries,omitempty"` // after the first try; default 3
}

// Update is Knobs for one rollout, in replicas.
type Update struct {
	Ratio        int             `json:"ratio,omitempty"` // share of a stage in percent; 0: Step replicas
	Step         int             `json:"step"`            // of a stage, at least 1; in place a share of those that change
	Surge        int             `json:"surge"`
	Keep         int             `json:"keep,omitempty" feature:"lower-counts"` // pods beyond the desired number that stay until the new revision has the minimum by itself
	Unavailable  int             `json:"unavailable"`
	Min          int             `json:"min"`           // available pods of the service that the rollout leaves
	First        int             `json:"first"`         // pods that are added at once where the service has none: min_available if a document names it
	StageTimeout field.Duration  `json:"stage_timeout"` // 0: never
	OnTimeout    string          `json:"on_timeout"`
	Delay        field.Duration  `json:"delay,omitempty"`
	LeaveOld     bool            `json:"leave_old,omitempty"`
	CanaryPods   int             `json:"canary_pods,omitempty"`
	AutoPromote  *field.Duration `json:"auto_promote,omitempty"`
	KeepOld      field.Duration  `json:"keep_old,omitempty"`
	Gates        Gates           `json:"gates,omitzero"`
}

// Kind returns the strategy that the knobs ask for.
func (k *Knobs) Kind() string {
	switch {
	case k.Strategy != "":
		return k.Strategy
	case k.Canary != nil:
		return CanaryStrategy
	case k.Order == StopFirst:
		return ResourceUtilStrategy
	default:
		return AvailabilityStrategy
	}
}

// StopsFirst reports whether the old revisions shrink before the new one grows.
func (k *Knobs) StopsFirst() bool { return k.Kind() == ResourceUtilStrategy || k.Order == StopFirst }

// Validate reports every mistake that can be seen without the service, with paths below path.
func (k *Knobs) Validate() field.Errors {
	var errs field.Errors
	oneOf := func(name, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs.Add(name, value, strings.Join(allowed, ", "))
		}
	}
	if k.Strategy != "" {
		oneOf("strategy", k.Strategy, StrategyNames()...)
	}
	if k.Order != "" {
		oneOf("order", k.Order, StartFirst, StopFirst)
	}
	if k.OnTimeout != "" {
		oneOf("on_timeout", k.OnTimeout, OnTimeoutRollback, OnTimeoutPause, OnTimeoutContinue)
	}
	k.Step.check(&errs, "step", 1)
	k.MaxSurge.check(&errs, "max_surge", 0)
	k.MaxUnavailable.check(&errs, "max_unavailable", 0)
	if k.MinAvailable != nil {
		field.CheckRange(&errs, "min_available", *k.MinAvailable, 0, rc.MaxReplicas)
	}
	if k.RevisionHistory != nil {
		field.CheckRange(&errs, "revision_history", *k.RevisionHistory, 0, MaxRevisionHistory)
	}
	for _, d := range []struct {
		name string
		wait *field.Duration
	}{{"stage_timeout", k.StageTimeout}, {"delay", k.Delay}, {"auto_promote", k.AutoPromote}, {"keep_old", k.KeepOld}} {
		field.CheckWait(&errs, d.name, d.wait)
	}
	if k.Canary != nil {
		field.CheckRange(&errs, "canary.pods", k.Canary.Pods, 1, rc.MaxReplicas)
	}
	k.Gates.validate(&errs)
	return errs
}

func (g *Gates) validate(errs *field.Errors) {
	check := func(name string, hooks []Hook) {
		for i, h := range hooks {
			path := fmt.Sprintf("gates.%s[%d]", name, i)
			if !strings.HasPrefix(h.URL, "http://") && !strings.HasPrefix(h.URL, "https://") {
				errs.Add(path+".url", h.URL, "an address that begins with http:// or https://")
			}
			field.CheckWait(errs, path+".timeout", h.Timeout)
			if h.Timeout != nil && *h.Timeout == 0 {
				errs.Add(path+".timeout", field.Text(time.Duration(*h.Timeout).String()), `a length of time, more than zero, such as "10s"`)
			}
			if h.Retries != nil {
				field.CheckRange(errs, path+".retries", *h.Retries, 0, MaxGateRetries)
			}
		}
	}
	check("before_stage", g.BeforeStage)
	check("after_stage", g.AfterStage)
}
