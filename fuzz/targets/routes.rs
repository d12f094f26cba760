//! Fuzzes the parser of route files. Rendering a parsed file and parsing the result must yield the same
//! routes, in the manifest form and in the runtime form.
#![no_main]

use bottle_policy::route::{Form, parse_routes, render_routes};

libfuzzer_sys::fuzz_target!(|text: &str| {
    for form in [Form::Manifest, Form::Runtime] {
        if let Ok(table) = parse_routes(text, form) {
            let written = render_routes(&table);
            assert_eq!(parse_routes(&written, form).as_ref(), Ok(&table), "{written}");
        }
    }
});
