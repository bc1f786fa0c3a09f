// Package record has the records of services below deployments/, and the type with everything that a deployment reads
// and writes at once.
package record
