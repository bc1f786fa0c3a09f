package app_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/app"
	"github.com/rcfarm/rcfarm/pkg/farm/alert"
)

// An error about the URL for alerts does not show the URL, because it may be a secret. A program with an alerter of its
// own takes no URL.
func TestErrorsHideTheURLForAlerts(t *testing.T) {
	t.Parallel()
	farm := app.FarmConfig{
		Common: app.Common{
			Prefix: "x/", TTL: 2 * time.Second, DataDir: t.TempDir(), LogLevel: "info",
			LogFormat: "text", DebugAddr: "off",
		},
		ID: "f1", Workers: 1, Session: "check",
	}
	for url, alerter := range map[string]alert.Alerter{
		"s3cret": nil, "https://user:s3cret@alerts.example/": nil, "ftp://alerts.example/s3cret": nil,
		"https://alerts.example/s3cret": alert.Log{},
	} {
		farm.AlertWebhook, farm.Alerter = url, alerter
		err := startFarm(t, farm)
		if err == nil || !strings.Contains(err.Error(), "alert-webhook") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
