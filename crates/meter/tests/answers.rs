//! Feeds complete responses of the three APIs to `Meter`, split into pieces of any size, and checks the usage. Also
//! feeds interrupted responses, and bodies that are not model responses.
#![allow(missing_docs)]

use bottle_meter::{Expected, Meter, Reading};
use bottle_protocol::usage::{Api, Tokens};
use proptest::prelude::*;

const MESSAGE: &str = r#"{"id":"msg_01","type":"message","role":"assistant","model":"claude-sonnet-4-5-20250929",
 "content":[{"type":"text","text":"{\"usage\":{\"input_tokens\":7}} and model"},
  {"type":"tool_use","id":"toolu_01","name":"Bash","input":{"usage":{"input_tokens":999999},"model":"none"}}],
 "stop_reason":"tool_use","stop_sequence":null,
 "usage":{"input_tokens":4,"cache_creation_input_tokens":1830,"cache_read_input_tokens":20512,
  "cache_creation":{"ephemeral_5m_input_tokens":1830,"ephemeral_1h_input_tokens":0},
  "output_tokens":92,"service_tier":"standard","server_tool_use":{"web_search_requests":0}}}"#;

const MESSAGE_EVENTS: &str = r#"event: message_start
data: {"type":"message_start","message":{"model":"claude-sonnet-4-5-20250929","id":"msg_01","type":"message","role":"assistant","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":4,"cache_creation_input_tokens":1830,"cache_read_input_tokens":20512,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\"type\":\"message_stop\" and data: [DONE]"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":4,"cache_creation_input_tokens":1830,"cache_read_input_tokens":20512,"output_tokens":92}}

event: message_stop
data: {"type":"message_stop"}

"#;

const COMPLETION: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1760000000,"model":"gpt-5.1-2025-11-13",
 "choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",
  "function":{"name":"bash","arguments":"{\"usage\":{\"prompt_tokens\":7}}"}}]},"finish_reason":"tool_calls"}],
 "usage":{"prompt_tokens":1340,"completion_tokens":77,"total_tokens":1417,
  "prompt_tokens_details":{"cached_tokens":1024,"audio_tokens":0},
  "completion_tokens_details":{"reasoning_tokens":50,"audio_tokens":0}},"service_tier":"default"}"#;

const COMPLETION_EVENTS: &str = r#": OPENROUTER PROCESSING

data: {"id":"gen-1","provider":"OpenAI","model":"openai/gpt-5.1","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"gen-1","provider":"OpenAI","model":"openai/gpt-5.1","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"content":"{\"usage\":"},"finish_reason":null}],"usage":null}

data: {"id":"gen-1","provider":"OpenAI","model":"openai/gpt-5.1","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"id":"gen-1","provider":"OpenAI","model":"openai/gpt-5.1","object":"chat.completion.chunk","created":1,"choices":[],"usage":{"prompt_tokens":1340,"completion_tokens":77,"total_tokens":1417,"cost":0.0021,"prompt_tokens_details":{"cached_tokens":1024}}}

data: [DONE]

"#;

const RESPONSE: &str = r#"{"id":"resp_1","object":"response","created_at":1,"status":"completed","error":null,"model":"gpt-5.1-codex",
 "output":[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"function_call","name":"shell","arguments":"{}"}],
 "tools":[{"type":"function","parameters":{"usage":{"input_tokens":5}}}],
 "usage":{"input_tokens":9021,"input_tokens_details":{"cached_tokens":8960},"output_tokens":310,
  "output_tokens_details":{"reasoning_tokens":256},"total_tokens":9331}}"#;

const RESPONSE_EVENTS: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"gpt-5.1-codex","output":[],"usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1","delta":"response.completed"}

event: response.completed
data: {"type":"response.completed","sequence_number":2,"response":{"id":"resp_1","object":"response","status":"completed","model":"gpt-5.1-codex","output":[{"type":"message","content":[{"type":"output_text","text":"response.completed"}]}],"usage":{"input_tokens":9021,"input_tokens_details":{"cached_tokens":8960},"output_tokens":310,"output_tokens_details":{"reasoning_tokens":256},"total_tokens":9331}}}

"#;

const ANSWERS: [(Api, &str, &str, [Option<u64>; 4]); 6] = [
    (Api::Messages, MESSAGE, "claude-sonnet-4-5-20250929", [Some(4), Some(92), Some(20512), Some(1830)]),
    (
        Api::Messages,
        MESSAGE_EVENTS,
        "claude-sonnet-4-5-20250929",
        [Some(4), Some(92), Some(20512), Some(1830)],
    ),
    (Api::ChatCompletions, COMPLETION, "gpt-5.1-2025-11-13", [Some(1340), Some(77), Some(1024), None]),
    (Api::ChatCompletions, COMPLETION_EVENTS, "openai/gpt-5.1", [Some(1340), Some(77), Some(1024), None]),
    (Api::Responses, RESPONSE, "gpt-5.1-codex", [Some(9021), Some(310), Some(8960), None]),
    (Api::Responses, RESPONSE_EVENTS, "gpt-5.1-codex", [Some(9021), Some(310), Some(8960), None]),
];

/// The expected usage of each request in these tests.
const REQUEST: Expected = Expected { prompt: 101, may_grow: false, output: None };
/// The estimated input tokens of each request in these tests.
const ESTIMATED: Option<u64> = Some(REQUEST.prompt);

fn tokens([input, output, cached, cache_written]: [Option<u64>; 4]) -> Tokens {
    Tokens { input, output, cached, cache_written }
}

fn read<'p>(api: Api, pieces: impl IntoIterator<Item = &'p [u8]>, whole: bool) -> Option<Reading> {
    let mut meter = Meter::new(api, false);
    pieces.into_iter().for_each(|piece| meter.feed(piece));
    meter.finish(whole, REQUEST)
}

fn at_once(api: Api, answer: &str) -> Option<Reading> {
    read(api, [answer.as_bytes()], true)
}

/// The `usage` object of a compaction and the response after it. The top-level counts include only the response.
const ITERATIONS: &str = r#"{"input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":5,"iterations":[
 {"type":"compaction","input_tokens":180000,"output_tokens":3500,"cache_read_input_tokens":70,"cache_creation":{"ephemeral_5m_input_tokens":9}},
 {"type":"message","input_tokens":23000,"output_tokens":1000,"cache_read_input_tokens":5,"cache_creation_input_tokens":0}]}"#;

#[test]
fn a_compaction_counts_with_the_response() {
    let expected = tokens([Some(203_000), Some(4500), Some(75), Some(0)]);
    let usage = ITERATIONS.replace('\n', "");
    let whole = format!(r#"{{"type":"message","usage":{usage}}}"#);
    // The counts of a stream are cumulative.
    let events = format!(
        "data: {{\"type\":\"message_start\",\"message\":{{\"usage\":{usage}}}}}\n\n\
         data: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{usage}}}\n\n\
         data: {{\"type\":\"message_stop\"}}\n\n"
    );
    for response in [&whole, &events] {
        let reading = at_once(Api::Messages, response).expect("a response");
        assert_eq!((reading.tokens, reading.estimated), (expected, false), "{response}");
        let split = read(Api::Messages, response.as_bytes().chunks(3), true).expect("a response");
        assert_eq!(split, reading);
    }
}

#[test]
fn reads_every_response_format() {
    for (api, answer, model, numbers) in ANSWERS {
        let reading = at_once(api, answer).unwrap_or_else(|| panic!("{answer}"));
        let expected = Reading {
            model: Some(model.to_owned()),
            tokens: tokens(numbers),
            interrupted: false,
            estimated: false,
        };
        assert_eq!(reading, expected, "{answer}");
        let crlf = answer.replace('\n', "\r\n");
        assert_eq!(at_once(api, &crlf), Some(expected), "with other line ends: {answer}");
    }
}

/// The meter detects the end as early as possible, because the proxy may withhold the last piece until the
/// usage record is written.
#[test]
fn detects_the_end_with_the_last_relevant_byte() {
    for (api, answer, ..) in ANSWERS {
        let mut meter = Meter::new(api, false);
        let end = answer.len() - 1;
        meter.feed(&answer.as_bytes()[..end]);
        assert!(!meter.has_ended(), "{answer}");
        meter.feed(&answer.as_bytes()[end..]);
        assert!(meter.has_ended(), "{answer}");
    }
}

#[test]
fn an_interrupted_response_keeps_its_counts() {
    let until = |text: &str, words: &str| text[..text.find(words).expect("there")].to_owned();
    for (api, answer, numbers) in [
        (Api::Messages, until(MESSAGE_EVENTS, "event: ping"), [Some(4), Some(1), Some(20512), Some(1830)]),
        // The 42 bytes of the text in the events are estimated as 14 tokens.
        (
            Api::Messages,
            until(MESSAGE_EVENTS, "2}}\n\nevent: message_stop"),
            [Some(4), Some(14), Some(20512), Some(1830)],
        ),
        (
            Api::Messages,
            until(MESSAGE_EVENTS, "event: message_stop"),
            [Some(4), Some(92), Some(20512), Some(1830)],
        ),
        (Api::Messages, until(MESSAGE, "\"output_tokens\""), [Some(4), Some(171), Some(20512), Some(1830)]),
        (
            Api::ChatCompletions,
            until(COMPLETION_EVENTS, "\"finish_reason\":\"stop\""),
            [ESTIMATED, Some(4), None, None],
        ),
        (Api::ChatCompletions, until(COMPLETION, "\"usage\""), [ESTIMATED, Some(109), None, None]),
        (
            Api::Responses,
            until(RESPONSE_EVENTS, "event: response.completed"),
            [ESTIMATED, Some(6), None, None],
        ),
        (Api::Responses, until(RESPONSE, "310"), [Some(9021), Some(131), Some(8960), None]),
    ] {
        for whole in [false, true] {
            let reading = read(api, [answer.as_bytes()], whole).unwrap_or_else(|| panic!("{answer}"));
            assert_eq!((reading.tokens, reading.interrupted), (tokens(numbers), true), "{answer}");
            assert!(reading.estimated, "{answer}");
        }
    }
}

#[test]
fn what_an_interrupted_response_does_not_prove_counts_as_reserved() {
    let until = |text: &str, words: &str| text[..text.find(words).expect("there")].to_owned();
    let reserved = Expected { output: Some(5000), ..REQUEST };
    let started = until(MESSAGE_EVENTS, "event: ping");
    for (api, answer, expected, numbers) in [
        (Api::Messages, String::new(), reserved, [ESTIMATED, Some(5000), None, None]),
        (Api::Messages, started.clone(), reserved, [Some(4), Some(5000), Some(20512), Some(1830)]),
        // A tool that the provider runs may add tokens to the prompt.
        (
            Api::Messages,
            started,
            Expected { may_grow: true, ..reserved },
            [ESTIMATED, Some(5000), Some(20512), Some(1830)],
        ),
        // The second-to-last event has the final count.
        (
            Api::Messages,
            until(MESSAGE_EVENTS, "event: message_stop"),
            reserved,
            [Some(4), Some(92), Some(20512), Some(1830)],
        ),
        (
            Api::Messages,
            until(MESSAGE_EVENTS, "\n\nevent: message_stop"),
            reserved,
            [Some(4), Some(5000), Some(20512), Some(1830)],
        ),
        (
            Api::ChatCompletions,
            until(COMPLETION_EVENTS, "data: [DONE]"),
            reserved,
            [Some(1340), Some(5000), Some(1024), None],
        ),
        (
            Api::Responses,
            until(RESPONSE_EVENTS, "event: response.completed"),
            reserved,
            [ESTIMATED, Some(5000), None, None],
        ),
    ] {
        let mut meter = Meter::new(api, true);
        meter.feed(answer.as_bytes());
        let reading = meter.finish(false, expected).unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(reading.tokens, tokens(numbers), "{answer}");
        assert!(reading.estimated && reading.interrupted, "{answer}");
    }
    // If a response has no counts, the model may have produced reasoning tokens that the response does not show.
    let silent = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"content\":\"Hi.\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let mut meter = Meter::new(Api::ChatCompletions, true);
    meter.feed(silent.as_bytes());
    let reading = meter.finish(true, reserved).expect("an answer");
    assert_eq!(reading.tokens, tokens([ESTIMATED, Some(5000), None, None]));
}

#[test]
fn accepts_an_end_without_trailing_formatting() {
    let cut = |text: &str, bytes: usize| text[..text.len() - bytes].to_owned();
    let done = COMPLETION_EVENTS.len() - COMPLETION_EVENTS.find("data: [DONE]").expect("there");
    for (api, answer) in [
        (Api::Messages, cut(MESSAGE_EVENTS, 2)),
        (Api::Responses, cut(RESPONSE_EVENTS, 1)),
        (Api::ChatCompletions, cut(COMPLETION_EVENTS, done)),
    ] {
        let interrupted = |whole| read(api, [answer.as_bytes()], whole).expect("an answer").interrupted;
        assert!(!interrupted(true) && interrupted(false), "{answer}");
    }
}

#[test]
fn a_response_without_counts_is_recorded() {
    let done = COMPLETION_EVENTS.find("data: {\"id\":\"gen-1\",\"provider\":\"OpenAI\",\"model\":\"openai/gpt-5.1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"choices\":[],").expect("there");
    let without = format!("{}data: [DONE]\n\n", &COMPLETION_EVENTS[..done]);
    let reading = at_once(Api::ChatCompletions, &without).expect("an answer");
    assert_eq!((reading.tokens, reading.interrupted), (tokens([ESTIMATED, Some(4), None, None]), false));
    assert!(reading.estimated);
    let events_that_never_came = Meter::new(Api::Messages, true).finish(true, REQUEST).expect("an answer");
    assert_eq!(events_that_never_came.tokens, tokens([ESTIMATED, Some(0), None, None]));
    assert!(events_that_never_came.interrupted && events_that_never_came.estimated);
}

/// An agent must not be able to avoid metering by disconnecting before the meter can detect that the body is a model
/// response.
#[test]
fn an_interrupted_response_of_unknown_kind_is_recorded() {
    for answer in ["", "{", "{\"id\":\"msg_01\",\"ty"] {
        let reading = read(Api::Messages, [answer.as_bytes()], false).unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(reading.tokens.input, ESTIMATED, "{answer}");
        assert!(reading.estimated && reading.interrupted, "{answer}");
    }
    assert_eq!(read(Api::Messages, [&b"{\"message\":\"Queued.\"}"[..]], false), None);
}

/// A long streamed text is counted by its length, regardless of the number of events.
#[test]
fn estimates_the_output_of_tool_calls_and_long_texts() {
    let arguments = "x".repeat(30_000);
    let event = format!(
        "data: {{\"object\":\"chat.completion.chunk\",\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"function\":{{\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\n"
    );
    let reading = read(Api::ChatCompletions, [event.as_bytes()], false).expect("an answer");
    assert_eq!(reading.tokens.output, Some(10_000));
}

#[test]
fn reads_the_same_events_from_messages() {
    let events = RESPONSE_EVENTS.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut meter = Meter::new(Api::Responses, false);
    for event in events {
        assert!(!meter.has_ended(), "{event}");
        meter.feed_message(event.as_bytes());
    }
    assert!(meter.has_ended() && !meter.has_failed());
    assert_eq!(meter.finish(true, REQUEST), at_once(Api::Responses, RESPONSE_EVENTS));
    let error = br#"{"type":"error","status":429,"error":{"code":"rate_limit_exceeded"}}"#;
    let mut refused = Meter::new(Api::Responses, false);
    refused.feed_message(error);
    assert!(refused.has_failed() && refused.is_refused());
    let mut failed = Meter::new(Api::Responses, false);
    failed.feed_message(br#"{"type":"response.created","response":{"model":"m"}}"#);
    failed.feed_message(error);
    assert!(failed.has_failed() && !failed.is_refused());
    let reading = failed.finish(false, REQUEST).expect("an answer");
    assert_eq!((reading.tokens.input, reading.interrupted), (ESTIMATED, true));
}

#[test]
fn ignores_other_content() {
    for answer in [
        "",
        "{}",
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        r#"{"error":{"message":"No auth","code":401}}"#,
        r#"{"id":"20251122.1@mail.example","message":"Queued. Thank you."}"#,
        r#"{"input_tokens":15}"#,
        "<html><body>usage</body></html>",
        "data: {\"type\":\"ping\"}\n\n",
    ] {
        for api in [Api::Messages, Api::ChatCompletions, Api::Responses] {
            assert_eq!(at_once(api, answer), None, "{api:?} {answer}");
        }
    }
}

#[test]
fn ignores_implausible_numbers() {
    for (number, counted) in [
        ("0", Some(0)),
        ("1000000000", Some(1_000_000_000)),
        ("1000000001", None),
        ("99999999999999999999999999", None),
        ("-1", None),
        ("1e3", None),
        ("1.5", None),
        ("\"12\"", None),
        ("null", None),
        ("[12]", None),
        ("", None),
    ] {
        let answer =
            format!("{{\"type\":\"message\",\"usage\":{{\"input_tokens\":{number},\"output_tokens\":1}}}}");
        let reading = at_once(Api::Messages, &answer).expect("an answer");
        assert_eq!(reading.tokens, tokens([counted.or(ESTIMATED), Some(1), None, None]), "{number}");
        assert_eq!(reading.estimated, counted.is_none(), "{number}");
    }
    // Repeated counts are cumulative, so the larger count is used even if it comes first.
    let twice = "data: {\"usage\":{\"prompt_tokens\":9}}\n\ndata: {\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n";
    assert_eq!(at_once(Api::ChatCompletions, twice).expect("an answer").tokens.input, Some(9));
}

#[test]
fn model_names_are_printable_and_bounded() {
    let model = |written: &str| {
        let answer = format!("{{\"type\":\"message\",\"model\":\"{written}\"}}");
        at_once(Api::Messages, &answer).expect("an answer").model
    };
    assert_eq!(model("a\\u002fb\\u001b[31m\\n\u{202e}"), Some("a/b?[31m??".to_owned()));
    assert_eq!(model(""), None);
    assert_eq!(model(&"x".repeat(129)), None);
    assert_eq!(model("\\ud800"), None);
}

/// A single event of many megabytes does not hide later events.
#[test]
fn events_may_have_any_length() {
    let text = "lorem ipsum ".repeat(1 << 20);
    let long = format!("data: {{\"type\":\"content_block_delta\",\"delta\":{{\"text\":\"{text}\"}}}}\n\n");
    let (start, rest) = MESSAGE_EVENTS.split_at(MESSAGE_EVENTS.find("event: message_delta").expect("there"));
    let reading = read(Api::Messages, [start, &long, rest].map(str::as_bytes), true).expect("an answer");
    assert_eq!(reading.tokens.output, Some(92));
    let response = RESPONSE.replacen("\"summary\":[]", &format!("\"summary\":[\"{text}\"]"), 1);
    assert_eq!(at_once(Api::Responses, &response), at_once(Api::Responses, RESPONSE));
}

proptest! {
    #[test]
    fn splitting_the_input_makes_no_difference(which in 0..ANSWERS.len(), sizes in prop::collection::vec(1_usize..200, 1..40)) {
        let (api, answer, ..) = ANSWERS[which];
        let (mut rest, mut sizes) = (answer.as_bytes(), sizes.into_iter().cycle());
        let mut pieces = Vec::new();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(sizes.next().expect("for ever").min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        prop_assert_eq!(read(api, pieces, true), at_once(api, answer));
    }

    #[test]
    fn damaged_responses_never_panic_or_yield_implausible_numbers(
        which in 0..ANSWERS.len(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..30), whole in any::<bool>(),
    ) {
        let (api, answer, ..) = ANSWERS[which];
        let mut bytes = answer.as_bytes().to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(Reading { tokens: Tokens { input, output, cached, cache_written }, .. }) = read(api, [&bytes[..]], whole) {
            for number in [input, output, cached, cache_written].into_iter().flatten() {
                prop_assert!(number <= 1_000_000_000);
            }
        }
    }
}
