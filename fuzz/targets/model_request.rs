//! Fuzzes the reading of requests to models. What a request costs must not depend on padding, or on whether its prompt
//! is compared with earlier ones.
#![no_main]

use std::hash::RandomState;

use bottle_protocol::usage::Api;
use bottle_meter::MeteredRequest;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [kind, body @ ..] = bytes else { return };
    let api = [Api::Messages, Api::ChatCompletions, Api::Responses][usize::from(kind % 3)];
    let keys = RandomState::new();
    let read = |body: &[u8], compares| {
        let request = MeteredRequest::read(api, body, &keys, compares);
        request.map(|request| MeteredRequest { fingerprint: None, ..request })
    };
    let request = read(body, false);
    assert_eq!(read(body, true), request);
    assert_eq!(read(&[b" \n", body, b"\t"].concat(), false), request);
    if let Ok(request) = request {
        assert!((1..=128).contains(&request.completions) && request.output != Some(0));
    }
});
