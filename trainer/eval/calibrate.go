package eval

import (
	"context"
	"encoding/json"

	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/trainer/decision"
	"github.com/hanzoai/link/trainer/kai"
)

// Calibrate fits the model's temperatures on rows held out for it, sets them,
// and notes the calibration in the model's provenance. A bucket that the rows do
// not reach keeps the temperature it had.
func Calibrate(ctx context.Context, m *kai.Model, rows []decision.Row) (Calibration, error) {
	held, err := Hold(ctx, m, rows)
	if err != nil {
		return Calibration{}, err
	}
	c, err := FitTemperatures("dev", held)
	if err != nil {
		return Calibration{}, err
	}
	if m.Config.Temperature == nil {
		m.Config.Temperature = map[string]float64{}
	}
	for bucket, t := range c.Temperatures() {
		m.Config.Temperature[bucket] = t
	}
	note, err := canon.Marshal(c)
	if err != nil {
		return Calibration{}, err
	}
	if m.Config.Provenance == nil {
		m.Config.Provenance = map[string]json.RawMessage{}
	}
	m.Config.Provenance["calibration"] = note
	return c, nil
}
