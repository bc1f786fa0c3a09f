package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/internal/webhook"
	"github.com/rcfarm/rcfarm/pkg/obs"
)

// alertTimeout is how long the webhook for alerts may take to answer.
const alertTimeout = 10 * time.Second

// newHook returns what posts alerts to the webhook. Its URL may be a secret, and is not in what is logged.
func (f *Farm) newHook(reg prometheus.Registerer) *alert.Hook {
	return alert.NewHook(alert.HookConfig{
		Post: func(ctx context.Context, m alert.Message) error {
			return webhook.Post(ctx, f.cfg.AlertWebhook, "the alert webhook", alertTimeout, m)
		},
		Told: func(rcID string) {
			if worker := f.worker.Load(); worker != nil {
				worker.Told(rcID)
			}
		},
		Log: f.log.WithField(obs.FarmID, f.cfg.ID), Metrics: alert.NewHookMetrics(reg),
	})
}
