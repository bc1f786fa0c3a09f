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
	size := func(name string, value, least int64, allowed string) {
		if value < least {
			errs.Add(name, value, allowed)
		}
	}
	length := func(name string, value time.Duration) {
		if value < time.Second {
			errs.Add(name, value.String(), "a length of time of 1s or more")
		}
	}
	size("artifact-cache-bytes", c.CacheBytes, 1, "a number of bytes, 1 or more") // artifact's zero is its default
	size("artifact-max-bytes", c.MaxBytes, 1, "a number of bytes, 1 or more")
	size("artifact-max-unpacked-bytes", c.MaxUnpackedBytes, 1, "a number of bytes, 1 or more")
	size("artifact-reserve-bytes", c.ReserveBytes, 0, "a number of bytes, 0 (none) or more")
	length("artifact-timeout", c.FetchTimeout)
	length("artifact-stall-timeout", c.StallTimeout)
}

// artifactsIn returns the configuration of the artifacts in a directory. Flags leave ReserveBytes zero for none, which is artifact's default.
func artifactsIn(dir string, c artifact.Config) artifact.Config {
	c.Dir = dir
	if c.ReserveBytes == 0 {
		c.ReserveBytes = -1
	}
	return c
}
