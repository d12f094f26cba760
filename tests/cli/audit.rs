//! Tests `bottle audit show`: what a user sees of the routes that an approval changed.

use anyhow::Result;
use bottle_protocol::audit::{Head, append};
use bottle_test_support::home::TestHome;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::home::{home, snapshot, transcripts};

const PROPOSAL: &str = "01010101-0101-4101-8101-010101010101";

const ROUTES: &str = "host: '*.site.example'\nmatches:\n- methods:\n  - GET\n";
const CREDENTIAL: &str = "host: api.example\nauth:\n  scheme: Bearer\n  slot: TOKEN\n";
const ADDED: &str = "host: docs.example\n";

/// Writes the audit log of the ended bottle `one`, with these entries.
fn write_log(home: &TestHome, entries: &[(&str, Value)]) -> Result<()> {
    let mut head = Head::default();
    let mut log = String::new();
    for (by, entry) in entries {
        let (line, next) = append(&head, Timestamp::UNIX_EPOCH, by, entry)?;
        log.push_str(&line);
        log.push('\n');
        head = next;
    }
    home.write("home/.bottle/audit/one.jsonl", &log)?;
    home.write("home/.bottle/audit/heads/one", &head.to_string())?;
    Ok(())
}

/// An entry about the approval of a host with this scope. `effective` are the routes before and after.
fn approval(scope: &str, revision: u64, gains: &[&str], effective: Option<Value>) -> Value {
    let mut entry = json!({
        "what": "intent", "proposal": PROPOSAL, "tool": "egress-allow", "status": "approved", "scope": scope,
        "reason": "it may", "revision": revision, "gains": gains, "diff": "",
    });
    if let Some(effective) = effective {
        entry["effective"] = effective;
    }
    entry
}

fn live(revision: u64) -> Value {
    json!({"what": "live", "proposal": PROPOSAL, "revision": revision})
}

#[test]
fn shows_the_routes_before_and_after_an_approval() -> Result<()> {
    let home = home()?;
    let before = json!({"revision": 2, "routes": [CREDENTIAL, ROUTES]});
    let after = json!({"revision": 3, "routes": [CREDENTIAL, ROUTES, ADDED]});
    let once = json!({
        "revision": 4, "routes": [CREDENTIAL, ROUTES, ADDED],
        "once": [{"proposal": PROPOSAL, "routes": "routes:\n- host: other.example\n"}],
    });
    // Of a large table, routes that stay are left out of both revisions.
    let part = json!({"revision": 4, "routes": [ROUTES, ADDED], "omitted": 1});
    let smaller = json!({"revision": 5, "routes": [ROUTES], "omitted": 1});
    let change = |unchanged, before: &Value, after: &Value| {
        Some(json!({"unchanged": unchanged, "before": before, "after": after}))
    };
    let gain = ["docs.example: every request"];
    write_log(
        &home,
        &[
            ("anna", approval("run", 2, &["*.site.example: GET"], None)),
            ("keeper", live(2)),
            ("anna", approval("run", 3, &gain, change(false, &before, &after))),
            ("keeper", live(3)),
            ("anna", approval("run", 3, &[], change(true, &after, &after))),
            ("anna", approval("once", 4, &["other.example: every request"], change(false, &after, &once))),
            (
                "anna",
                json!({
                    "what": "change", "change": PROPOSAL, "host": "docs.example", "revision": 5, "gains": [],
                    "losses": gain, "diff": "", "effective": change(false, &part, &smaller),
                }),
            ),
            (
                "anna",
                json!({
                    "what": "decided", "proposal": PROPOSAL, "tool": "egress-allow", "status": "rejected",
                    "reason": "not that one", "payload": "0".repeat(64),
                }),
            ),
        ],
    )?;
    snapshot!(transcripts(
        &home,
        &[
            &["audit", "show", "one"],
            &["audit", "show", "one", "--routes"],
            &["audit", "show", "one", "--json"],
            &["audit", "verify", "one"],
        ],
    )?);
    Ok(())
}

/// Text of a bottle in the routes neither moves the cursor nor begins a line.
#[test]
fn escapes_the_routes() -> Result<()> {
    let home = home()?;
    let hostile =
        json!({"revision": 3, "routes": ["host: a\u{1b}[2J\none  1970-01-01 00:00:00Z  anna\u{202e}"]});
    let none = json!({"revision": 2, "routes": []});
    let effective = json!({"unchanged": false, "before": none, "after": hostile});
    write_log(&home, &[("anna", approval("run", 3, &["a\u{1b}[2J\none"], Some(effective)))])?;
    snapshot!(transcripts(&home, &[&["audit", "show", "--routes"]])?);
    Ok(())
}
