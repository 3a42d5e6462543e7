package main

import (
	"bytes"
	"encoding/json"
	"strings"
)

// The demo's rows are messages to a shop's help desk, written by the grammar
// below. A message says what it is about and may say how its writer feels. Two
// questions are asked of such messages: which queue they belong in, and whether
// the writer is about to leave. The wording of one does not decide the other.

var subjects = map[string][]string{
	"billing": {
		"I was charged twice for {item}", "the invoice for {item} shows {amount} too much", "my card was debited {amount} and I do not know why",
		"please send me a receipt for {item}", "the discount on {item} was not applied", "my refund of {amount} has not reached my bank",
		"why is there a {amount} fee on my statement", "I paid for {item} and the payment is still pending",
	},
	"delivery": {
		"the parcel with {item} has not arrived", "{item} came to {place} instead of my home", "tracking says delivered but there is no {item} here",
		"can you bring {item} to {place} on {day}", "the courier left {item} in the rain", "my package has been stuck in {place} since {day}",
		"when will {item} reach {place}", "nobody rang the bell and the driver took {item} back",
	},
	"account": {
		"I cannot sign in since {day}", "the code for my login never comes", "please change the address on my profile to {place}",
		"my password reset link has expired", "someone else is using my login", "I want to merge two accounts",
		"how do I change the email I sign in with", "the app logs me out every time I open it",
	},
	"product": {
		"{item} stopped working on {day}", "does {item} fit the older model", "the manual of {item} is missing a page",
		"{item} makes a strange noise", "the colour of {item} is not the one in the picture", "how do I clean {item}",
		"a part of {item} broke off", "what is {item} made of",
	},
	"order": {
		"please add {item} to the order I placed on {day}", "cancel {item} from my basket", "I ordered {item} but meant two of them",
		"can I still swap {item} for another size", "is {item} back in stock", "my order from {day} has no confirmation",
		"hold my order until {day}", "I want to order {item} for a school",
	},
}

var queues = []string{"account", "billing", "delivery", "order", "product"}

var leaving = []string{
	"if this goes on I will buy elsewhere", "this was my last time with you", "I am closing my account over this",
	"other shops do this better and I am switching", "you have lost a customer", "I will take my business to {rival}",
	"my next order goes to {rival}", "I am done with this shop",
}

var staying = []string{
	"thank you for your help", "no rush at all", "I have shopped here for years and like it", "you were quick last time",
	"I am sure it is a small thing", "please let me know", "sorry to bother you again", "{rival} could not help me so I am glad you can",
	"my neighbour buys here too", "this is the second time I ask",
}

var openings = []string{"", "", "hello, ", "hi there, ", "good morning, ", "dear team, ", "quick question: ", "so, "}

var slots = map[string][]string{
	"{item}":   {"the kettle", "a pair of boots", "the desk lamp", "two pillows", "the blue rucksack", "a phone case", "the bread knife", "my headphones", "a garden hose", "the toy train", "the wool blanket", "a bike light"},
	"{amount}": {"3 euros", "12.50", "40 dollars", "a cent", "199", "7.99", "half the price"},
	"{place}":  {"my office", "the old flat", "Leeds", "my sister's house", "the depot", "Porto", "the shop on Mill Road", "Bergen"},
	"{day}":    {"Monday", "yesterday", "the 3rd", "last week", "Friday evening", "Sunday"},
	"{rival}":  {"the shop next door", "the big warehouse", "Nordhaus", "the market"},
}

// dice is SplitMix64: the same seed, the same messages, on every machine.
type dice uint64

func (d *dice) roll(n int) int {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(n))
}

func (d *dice) pick(from []string) string { return from[d.roll(len(from))] }

// fill replaces the slots of a sentence, in the order they stand.
func (d *dice) fill(sentence string) string {
	for {
		open := strings.IndexByte(sentence, '{')
		if open < 0 {
			return sentence
		}
		end := open + strings.IndexByte(sentence[open:], '}') + 1
		sentence = sentence[:open] + d.pick(slots[sentence[open:end]]) + sentence[end:]
	}
}

// message is one row as a person's own file would hold it.
type message struct {
	Text  string `json:"text"`
	Queue string `json:"queue,omitempty"`
	Leave string `json:"leave,omitempty"`
}

// messages writes n distinct messages as JSON Lines. Each answers one of the two
// questions: the label of the other is left out, as in life.
func messages(seed uint64, n int, question string) []byte {
	d := dice(seed)
	var out bytes.Buffer
	seen := make(map[string]bool, n)
	for len(seen) < n {
		queue := queues[d.roll(len(queues))]
		leave := d.roll(2) == 0
		mood := staying
		if leave {
			mood = leaving
		}
		about, feeling := d.fill(d.pick(subjects[queue])), d.fill(d.pick(mood))
		text := about + ". " + feeling
		switch {
		case !leave && d.roll(3) == 0:
			text = about
		case d.roll(3) == 0:
			text = feeling + ". " + about
		}
		text = d.pick(openings) + text + "."
		if seen[text] {
			continue
		}
		seen[text] = true
		row := message{Text: text}
		if question == "queue" {
			row.Queue = queue
		} else {
			row.Leave = map[bool]string{true: "true", false: "false"}[leave]
		}
		line, err := json.Marshal(row)
		if err != nil {
			panic("demo: a message of plain strings did not marshal: " + err.Error())
		}
		out.Write(append(line, '\n'))
	}
	return out.Bytes()
}
