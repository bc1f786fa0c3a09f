package zz

import (
	_ "github.com/cenkalti/backoff/v5"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/hashicorp/consul/api"
	_ "github.com/hashicorp/go-retryablehttp"
	_ "github.com/oklog/run"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/sirupsen/logrus"
	_ "github.com/urfave/cli/v2"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "k8s.io/apimachinery/pkg/labels"
	_ "k8s.io/client-go/util/workqueue"
	_ "pgregory.net/rapid"
	_ "sigs.k8s.io/yaml"
)
