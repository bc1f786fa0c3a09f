package consul

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rcfarm/rcfarm/pkg/wait"
)

// The pauses after an error that SessionConfig.Stuck is true of.
const (
	stuckMin  = time.Second
	stuckMax  = 30 * time.Second
	stuckLook = time.Second // how soon another token is noticed meanwhile
)

// TokenRefused reports whether Consul does not know a request's token, or does not allow the token what was asked for.
// Another try does not mend that.
func TokenRefused(err error) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && refused.Denied() || answered(err, http.StatusForbidden) || errors.Is(err, ErrFiltered)
}

// paces are the pauses between the tries of one daemon's sessions.
type paces struct {
	usual, stuck *backoff.ExponentialBackOff
}

func newPaces() paces {
	return paces{usual: wait.NewPace(100*time.Millisecond, 5*time.Second), stuck: wait.NewPace(stuckMin, stuckMax)}
}

// pause waits after a tenure that lasted so long and ended with err.
func (p *paces) pause(ctx context.Context, d *daemon, lasted time.Duration, err error) error {
	if lasted > p.usual.MaxInterval { // it was not one more failed try
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
