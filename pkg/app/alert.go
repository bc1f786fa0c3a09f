package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/internal/webhook"
	"github.com/rcfarm/rcfarm/pkg/obs"
)

const alertTimeout = 10 * time.Second

// newHook does not log the URL, which may be a secret.
func (f *Farm) newHook(reg prometheus.Registerer) *alert.Hook {
	return alert.NewHook(alert.HookConfig{
		Post: func(ctx context.Context, m alert.Message) error {
			return webhook.Post(ctx, f.cfg.AlertWebhook, "the alert webhook", alertTimeout, m)
		},
		OnDelivered: func(rcID string) {
			if worker := f.worker.Load(); worker != nil {
				worker.AlertDelivered(rcID)
			}
		},
		Log: f.log.WithField(obs.FarmID, f.cfg.ID), Metrics: alert.NewHookMetrics(reg),
	})
}
