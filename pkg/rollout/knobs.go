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

// Amount is a number of replicas, such as 3, or a share of them, such as "10%".
type Amount struct {
	Percent bool
	N       int
}

// AmountAllowed describes valid amounts.
var AmountAllowed = fmt.Sprintf(`a whole number of replicas from 0 to %d, or a percentage from "0%%" to "100%%"`,
	rc.MaxReplicas)

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

// ParseAmount reads "3" or "10%". An error is a *field.Error.
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

func (a Amount) roundedDown(n int) int {
	if a.Percent {
		return n * a.N / 100
	}
	return a.N
}

// What happens when a stage makes no progress for its timeout.
const (
	OnTimeoutRollback = "rollback"
	OnTimeoutPause    = "pause"
	OnTimeoutContinue = "continue" // wait longer; Record.Stuck has the reason
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

// Limits of the knobs, in addition to a controller's limits.
const (
	MaxRevisionHistory = 1000
	MaxGateRetries     = 1000
)

// Knobs is the field "update" of a service document: how the service is rolled out.
type Knobs struct {
	Strategy string `json:"strategy,omitempty"` // default: availability, with stop-first: resourceutil
	Order    string `json:"order,omitempty"`    // start-first or stop-first
	// Step is the size of a stage; default 10 %, at least 1. In place it is a share of the pods that change.
	Step *Amount `json:"step,omitempty"`
	// MaxSurge is the most pods beyond the desired number; default: step, with stop-first 0.
	MaxSurge *Amount `json:"max_surge,omitempty"`
	// MaxUnavailable is how many pods may stop before their successors are available; default 0, with stop-first: step.
	MaxUnavailable *Amount         `json:"max_unavailable,omitempty"`
	MinAvailable   *int            `json:"min_available,omitempty"` // default: desired number less max_unavailable
	StageTimeout   *field.Duration `json:"stage_timeout,omitempty"` // without any progress; default 2m
	OnTimeout      string          `json:"on_timeout,omitempty"`    // rollback (default), pause or continue
	Delay          *field.Duration `json:"delay,omitempty"`         // between stages; default none
	LeaveOld       bool            `json:"leave_old,omitempty"`     // keep the old controllers, with the count 0
	// RevisionHistory is how many revisions are kept besides the one in effect; default 10.
	RevisionHistory *int    `json:"revision_history,omitempty"`
	Canary          *Canary `json:"canary,omitempty"` // strategy canary
	// AutoPromote promotes a canary or blue-green after this time; default: an operator promotes.
	AutoPromote *field.Duration `json:"auto_promote,omitempty"`
	KeepOld     *field.Duration `json:"keep_old,omitempty"` // blue-green: how long the old pods stand by
	Gates       Gates           `json:"gates,omitzero"`
	GroupOrder  []string        `json:"group_order,omitempty"` // roles in their rolling order; default: as declared
}

// Canary configures the first stage of the strategy canary.
type Canary struct {
	Pods int `json:"pods"` // default 1
}

// Gates are webhooks that have to agree.
type Gates struct {
	BeforeStage []Hook `json:"before_stage,omitempty"`
	AfterStage  []Hook `json:"after_stage,omitempty"`
}

// Hook is a URL that is asked with POST; every answer 2xx agrees.
type Hook struct {
	URL     string          `json:"url"`
	Timeout *field.Duration `json:"timeout,omitempty"` // of a try; default 10s
	Retries *int            `json:"retries,omitempty"` // after the first try; default 3
}

// Update is the knobs of one rollout, in pods.
type Update struct {
	Ratio int `json:"ratio,omitempty"` // share of a stage in percent; 0: Step replicas
	Step  int `json:"step"`            // size of a stage, at least 1; in place a share of the pods that change
	Surge int `json:"surge"`
	// Keep is how many pods beyond the desired number are kept until the new revision has the minimum by itself.
	Keep        int `json:"keep,omitempty" feature:"lower-counts"`
	Unavailable int `json:"unavailable"`
	Min         int `json:"min"` // available pods of the service that the rollout keeps
	// First is how many pods are added at once to a service without pods: min_available if a document has it.
	First        int             `json:"first"`
	StageTimeout field.Duration  `json:"stage_timeout"` // 0: never
	OnTimeout    string          `json:"on_timeout"`
	Delay        field.Duration  `json:"delay,omitempty"`
	LeaveOld     bool            `json:"leave_old,omitempty"`
	CanaryPods   int             `json:"canary_pods,omitempty"`
	AutoPromote  *field.Duration `json:"auto_promote,omitempty"`
	KeepOld      field.Duration  `json:"keep_old,omitempty"`
	Gates        Gates           `json:"gates,omitzero"`
}

// StrategyName returns the strategy that the knobs ask for.
func (k *Knobs) StrategyName() string {
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
func (k *Knobs) StopsFirst() bool {
	return k.StrategyName() == ResourceUtilStrategy || k.Order == StopFirst
}

// Validate returns every mistake that can be found without the service.
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
				errs.Add(path+".timeout", field.Text(time.Duration(*h.Timeout).String()),
					`a length of time, more than zero, such as "10s"`)
			}
			if h.Retries != nil {
				field.CheckRange(errs, path+".retries", *h.Retries, 0, MaxGateRetries)
			}
		}
	}
	check("before_stage", g.BeforeStage)
	check("after_stage", g.AfterStage)
}
