package app

import (
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rcfarm/rcfarm/pkg/artifact"
	"github.com/rcfarm/rcfarm/pkg/field"
)

// ArtifactFlags returns the flags of a preparer about artifacts, bound to c.
func ArtifactFlags(c *artifact.Config) []cli.Flag {
	return []cli.Flag{
		&cli.Int64Flag{Name: "artifact-cache-bytes", Usage: "beyond this, artifacts that no installed version needs are removed", Value: artifact.DefaultCacheBytes, Destination: &c.CacheBytes},
		&cli.Int64Flag{Name: "artifact-reserve-bytes", Usage: "free disk space that artifacts leave; 0: none", Value: artifact.DefaultReserveBytes, Destination: &c.ReserveBytes},
		&cli.Int64Flag{Name: "artifact-max-bytes", Usage: "largest archive that is fetched", Value: artifact.DefaultMaxBytes, Destination: &c.MaxBytes},
		&cli.Int64Flag{Name: "artifact-max-unpacked-bytes", Usage: "most that an archive may unpack to", Value: artifact.DefaultMaxUnpackedBytes, Destination: &c.MaxUnpackedBytes},
		&cli.DurationFlag{Name: "artifact-timeout", Usage: "for one whole fetch with its retries", Value: artifact.DefaultFetchTimeout, Destination: &c.FetchTimeout},
		&cli.DurationFlag{Name: "artifact-stall-timeout", Usage: "a server that sends less than 64 KiB in this time is given up", Value: artifact.DefaultStallTimeout, Destination: &c.StallTimeout},
	}
}

func checkArtifacts(errs *field.Errors, c *artifact.Config) {
	for _, size := range []struct {
		name  string
		value int64
	}{
		{"artifact-cache-bytes", c.CacheBytes},
		{"artifact-max-bytes", c.MaxBytes},
		{"artifact-max-unpacked-bytes", c.MaxUnpackedBytes},
	} {
		if size.value < 1 { // artifact's zero is its default
			errs.Add(size.name, size.value, "a number of bytes, 1 or more")
		}
	}
	if c.ReserveBytes < 0 {
		errs.Add("artifact-reserve-bytes", c.ReserveBytes, "a number of bytes, 0 (none) or more")
	}
	for _, length := range []struct {
		name  string
		value time.Duration
	}{
		{"artifact-timeout", c.FetchTimeout},
		{"artifact-stall-timeout", c.StallTimeout},
	} {
		if length.value < time.Second {
			errs.Add(length.name, length.value.String(), "a length of time of 1s or more")
		}
	}
}

// artifactsIn returns the configuration of the artifacts in a directory. Flags leave ReserveBytes zero for none, which is artifact's default.
func artifactsIn(dir string, c artifact.Config) artifact.Config {
	c.Dir = dir
	if c.ReserveBytes == 0 {
		c.ReserveBytes = -1
	}
	return c
}
