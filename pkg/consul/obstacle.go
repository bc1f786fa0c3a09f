package consul

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The pauses after an error for which SessionConfig.Stuck returns true.
const (
	stuckMin  = time.Second
	stuckMax  = 30 * time.Second
	stuckLook = time.Second // between two checks for a new token
)

// TokenRefused reports whether Consul does not know the token, or the token lacks a right. Another try does not help.
func TokenRefused(err error) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && refused.Denied() || answered(err, http.StatusForbidden) || errors.Is(err, ErrFiltered)
}

type paces struct {
	usual, stuck *backoff.ExponentialBackOff
}

func newPaces() paces {
	return paces{usual: wait.NewPace(100*time.Millisecond, 5*time.Second), stuck: wait.NewPace(stuckMin, stuckMax)}
}

func (p *paces) pause(ctx context.Context, d *daemon, lasted time.Duration, err error) error {
	if lasted > p.usual.MaxInterval { // the tenure was more than a failed try
		p.usual.Reset()
		p.stuck.Reset()
	}
	if d.Stuck == nil || !d.Stuck(err) {
		p.stuck.Reset()
		return wait.Pause(ctx, p.usual.NextBackOff())
	}
	token := d.TokenID()
	for left := p.stuck.NextBackOff(); left > 0 && d.TokenID() == token; left -= stuckLook {
		if err := wait.Pause(ctx, min(left, stuckLook)); err != nil {
			return err
		}
	}
	return nil
}
