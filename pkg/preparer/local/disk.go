package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/pkg/durable"
	"github.com/rcfarm/rcfarm/pkg/manifest"
	"github.com/rcfarm/rcfarm/pkg/scale"
)

const suffix = ".json"

// Disk keeps one JSON file for each service. A crash leaves the old one or the new one.
type Disk struct {
	dir     string
	reserve *durable.Reserve
}

// OpenDisk opens a directory of services, made if it is needed.
func OpenDisk(dir string, reserve *durable.Reserve) (*Disk, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of local services: %w", err)
	}
	return &Disk{dir: dir, reserve: reserve}, nil
}

// Load reads all services. A file that is none, or that the disk does not give, is set aside and reported, and its pods run on. The last result is about the whole, as where
// the disk gives none of its files: nobody knows then what the node was told, and nothing is changed.
func (d *Disk) Load() (all map[string]*Service, bad []error, err error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory of local services: %w", err)
	}
	all = map[string]*Service{}
	aside := map[string]error{} // by file
	var lost error
	for _, entry := range entries {
		path := filepath.Join(d.dir, entry.Name())
		switch {
		case strings.HasSuffix(path, durable.TempSuffix):
			if err := os.Remove(path); err != nil {
				bad = append(bad, fmt.Errorf("remove leftover: %w", err))
			}
		case strings.HasSuffix(path, suffix):
			s, err := read(path)
			switch {
			case err == nil:
				all[s.Name] = s
			case errors.Is(err, errGarbage):
				aside[path] = err
			case durable.OfOneFile(err):
				aside[path], lost = err, err
			default: // the next one will be no different
				return nil, nil, err
			}
		}
	}
	if len(all) == 0 && lost != nil {
		return nil, nil, lost
	}
	for path, err := range aside {
		to := path + "." + strconv.FormatInt(time.Now().UnixNano(), 10) + ".unreadable"
		bad = append(bad, errors.Join(err, os.Rename(path, to)))
	}
	return all, bad, nil
}

// errGarbage is about a file that was read, and is no service.
var errGarbage = errors.New("unreadable local service")

func read(path string) (*Service, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read local service: %w", err)
	}
	s, err := decode(data)
	if err == nil && s.Name+suffix != filepath.Base(path) {
		err = fmt.Errorf("it is about %q", s.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", errGarbage, path, err)
	}
	return s, nil
}

func decode(data []byte) (*Service, error) {
	var s Service
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if s.Version != Version {
		return nil, fmt.Errorf("format version %d; this build knows version %d", s.Version, Version)
	}
	if err := scale.New(s.Name, 0).Validate(); err != nil {
		return nil, err
	}
	for digest, spec := range s.Specs {
		spec.parsed = new(manifest.Manifest)
		if err := json.Unmarshal(spec.Manifest, spec.parsed); err != nil || manifest.Digest(spec.Manifest) != digest {
			return nil, fmt.Errorf("the manifest of digest %s cannot be read", digest)
		}
		s.Specs[digest] = spec
	}
	if s.Specs[s.Digest].parsed == nil {
		return nil, fmt.Errorf("there is no manifest of digest %s", s.Digest)
	}
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Role == "" || r.Index < 0 || r.Revision < 1 {
			return nil, fmt.Errorf("replica %q %d at revision %d", r.Role, r.Index, r.Revision)
		}
	}
	return &s, nil
}

// Save replaces the file of a service. When it returns nil, the file survives a power failure.
func (d *Disk) Save(s *Service) error {
	data, err := json.Marshal(s)
	if err == nil {
		err = d.reserve.WriteFile(filepath.Join(d.dir, s.Name+suffix), data)
	}
	if err != nil {
		return fmt.Errorf("save local service %s: %w", s.Name, err)
	}
	return nil
}

// Forget removes the file of a service. A power failure may bring it back, with replicas that are to stop.
func (d *Disk) Forget(name string) error {
	if err := os.Remove(filepath.Join(d.dir, name+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove local service %s: %w", name, err)
	}
	return nil
}
