package preparer

import (
	"github.com/rcfarm/rcfarm/pkg/internal/durable"
	"github.com/rcfarm/rcfarm/pkg/preparer/install"
)

// NewDisk opens the directory of the pods' records, and makes it if it is missing. It belongs to one daemon (R11).
func NewDisk(dir string) (*durable.Files[Record], error) {
	files := &durable.Files[Record]{
		Dir: dir, What: "pod record", Check: (*Record).Check,
		Name: func(r *Record) string { return install.FileName(r.Intent.Identity) },
	}
	return files, files.Open()
}
