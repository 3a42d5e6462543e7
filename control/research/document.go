package research

import (
	"reflect"

	"github.com/hanzoai/link/spool/gate"
)

// The shapes of types that write their own JSON, for the OpenAPI document only.
type (
	testDoc struct {
		Kind      gate.TestKind  `json:"kind" enum:"hold,improve,floor,ceiling"`
		Tolerance float64        `json:"tolerance,omitempty" doc:"hold"`
		Margin    float64        `json:"margin,omitempty" doc:"improve"`
		Interval  *gate.Interval `json:"interval,omitempty" doc:"hold and improve; null compares the two numbers"`
		Value     float64        `json:"value,omitempty" doc:"floor and ceiling"`
		Strict    bool           `json:"strict,omitempty" doc:"floor and ceiling"`
	}
	intervalDoc struct {
		Kind  gate.IntervalKind `json:"kind" enum:"bootstrap,mcnemar"`
		Draws uint32            `json:"draws,omitempty" doc:"bootstrap"`
		Level float64           `json:"level,omitempty" doc:"bootstrap"`
		Seed  uint64            `json:"seed,omitempty" doc:"bootstrap"`
		Unit  gate.Unit         `json:"unit,omitempty" enum:"item,group" doc:"bootstrap"`
		Alpha float64           `json:"alpha,omitempty" doc:"mcnemar"`
	}
)

// documentVariants tells the document what reflection cannot see.
func (p *Plane) documentVariants() {
	schemas := p.API.OpenAPI().Components.Schemas
	schemas.RegisterTypeAlias(reflect.TypeFor[gate.Test](), reflect.TypeFor[testDoc]())
	schemas.RegisterTypeAlias(reflect.TypeFor[gate.Interval](), reflect.TypeFor[intervalDoc]())
}
