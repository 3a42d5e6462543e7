package research

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"time"

	"github.com/hanzoai/link/control/api"
	"github.com/hanzoai/link/control/db"
	"github.com/hanzoai/link/spool/canon"
	"github.com/hanzoai/link/spool/record"
)

// A claim is what an upload address lets its bearer do: put exactly Size bytes as
// one part of one artifact of one org, until Expires. The address carries it in
// canonical JSON beside its HMAC-SHA-256, so nothing is stored when a grant is
// made and no byte of it can be changed. That a grant is used once is not in the
// claim: the store refuses a part it holds.
type claim struct {
	Org         string       `json:"org"`
	SHA256      canon.SHA256 `json:"sha256"`
	Number      uint32       `json:"number"`
	Offset      uint64       `json:"offset"`
	Size        uint64       `json:"size"`
	Total       uint64       `json:"total"` // bytes of all parts
	Compression string       `json:"compression"`
	Expires     int64        `json:"expires"` // Unix seconds
}

func (c claim) part() db.Part { return db.Part{Number: c.Number, Offset: c.Offset, Size: c.Size} }

// grant signs an address for every part of a that is not held.
func (p *Plane) grant(org *db.Org, name string, a record.Artifact) (*api.Grant, error) {
	missing, err := org.Missing(a)
	if err != nil {
		return nil, err
	}
	total, compression := a.Size, ""
	if a.Compression != nil {
		total, compression = *a.CompressedSize, string(*a.Compression)
	}
	expires := p.now().Add(api.GrantLife).UTC().Truncate(time.Second)
	g := &api.Grant{Expires: expires.Format(time.RFC3339), Parts: []api.Upload{}}
	for _, part := range missing {
		u, err := p.sign(claim{
			Org: name, SHA256: a.SHA256, Number: part.Number, Offset: part.Offset, Size: part.Size,
			Total: total, Compression: compression, Expires: expires.Unix(),
		})
		if err != nil {
			return nil, err
		}
		g.Parts = append(g.Parts, u)
	}
	if total <= api.PartSize {
		g.Upload, g.Parts = &g.Parts[0], []api.Upload{}
	}
	return g, nil
}

func (p *Plane) sign(c claim) (api.Upload, error) {
	body, err := canon.Marshal(c)
	if err != nil {
		return api.Upload{}, err
	}
	query := url.Values{
		"grant":     {base64.RawURLEncoding.EncodeToString(body)},
		"signature": {base64.RawURLEncoding.EncodeToString(p.mac(body))},
	}
	return api.Upload{
		Number: c.Number, Offset: c.Offset, Size: c.Size,
		Method: "PUT", URL: uploadsPath + "/" + string(c.SHA256) + "?" + query.Encode(),
	}, nil
}

func (p *Plane) mac(body []byte) []byte {
	h := hmac.New(sha256.New, p.store.GrantKey())
	h.Write(body)
	return h.Sum(nil)
}

// verify reads the claim of an upload address.
func (p *Plane) verify(path canon.SHA256, query url.Values) (claim, error) {
	refused := api.Refuse(api.GrantInvalid, "this server signed no such upload address")
	body, err := base64.RawURLEncoding.Strict().DecodeString(query.Get("grant"))
	if err != nil {
		return claim{}, refused
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(query.Get("signature"))
	if err != nil || !hmac.Equal(signature, p.mac(body)) {
		return claim{}, refused
	}
	var c claim
	if err := canon.Unmarshal(body, &c); err != nil || c.SHA256 != path {
		return claim{}, refused
	}
	if p.now().Unix() >= c.Expires {
		return claim{}, api.Refuse(api.GrantExpired, "the grant expired at %s; register the artifact again", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
	}
	return c, nil
}
