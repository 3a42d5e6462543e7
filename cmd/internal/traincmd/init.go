package traincmd

import (
	"context"
	"flag"
	"fmt"

	"github.com/hanzoai/link/cmd/internal/local"
	"github.com/hanzoai/link/cmd/internal/term"
	"github.com/hanzoai/link/trainer/data"
	"github.com/hanzoai/link/trainer/kai"
)

var initCommand = term.Command{
	Name: "init", Args: "CHECKPOINT",
	Short: "make a checkpoint from an encoder, or from nothing",
	Long: `
CHECKPOINT is a new folder. With --encoder it starts from a Hugging Face folder
of a BERT or ModernBERT encoder (config.json, *.safetensors, tokenizer.json).
With --size nano (4 layers of 128) or small (6 of 384) it starts from nothing,
with a vocabulary learned on the rows of --data. The head is new either way: the
checkpoint answers at chance until it is taught. The same flags give the same
bytes.`,
	Setup: func(flags *flag.FlagSet) func(context.Context, term.IO, []string) error {
		var m local.Machine
		m.Flag(flags)
		encoder := flags.String("encoder", "", "start from the encoder in this `folder`")
		size := flags.String("size", "", "start from nothing at this `size`: nano or small")
		suites := flags.String("data", "", "learn the vocabulary on these imported suites' `folders`, separated by commas")
		seed := flags.Uint64("seed", 1, "the `number` that all first weights come from")
		var maxLen int
		term.Natural(flags, &maxLen, "max-len", "read at most this `number` of tokens of a question's context; 0 is 1024, or what the encoder can")
		asJSON := term.AsJSON(flags)
		return func(ctx context.Context, streams term.IO, args []string) error {
			dir, err := term.One(args, "the checkpoint's new folder")
			if err != nil {
				return err
			}
			if (*encoder == "") == (*size == "") {
				return term.Usagef("say what to start from: --encoder FOLDER, or --size nano or small")
			}
			if *size != "" && *suites == "" {
				return term.Usagef("--size needs --data: a vocabulary is learned on your rows")
			}
			config := kai.InitConfig{Encoder: *encoder, Size: *size, Seed: *seed, MaxLen: maxLen}
			for _, suite := range term.List(*suites) {
				texts, err := data.Texts(suite)
				if err != nil {
					return term.Refuse(err)
				}
				config.Texts = append(config.Texts, texts...)
			}
			model, unused, err := kai.Init(config, m.Device())
			if err != nil {
				return err
			}
			if err := model.Save(dir); err != nil {
				return err
			}
			if *asJSON {
				return term.PrintJSON(streams.Out, struct {
					Checkpoint string   `json:"checkpoint"`
					SHA256     string   `json:"sha256"`
					Parameters int      `json:"parameters"`
					Unused     []string `json:"unused"`
				}{dir, model.SHA256, model.Size(), unused})
			}
			fmt.Fprintf(streams.Out, "%s: %.1f million parameters, weights %s\n", dir, float64(model.Size())/1e6, model.SHA256[:12])
			for _, name := range unused {
				fmt.Fprintf(streams.Out, "not used: %s\n", name)
			}
			return nil
		}
	},
}
