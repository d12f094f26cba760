//! Tests of the screen without a terminal: keys, events and drawing.

mod marking;

use crate::cli::route_args::parse_typed;
use bottle_instance::proxy_log::Warning;
use bottle_keeper::protocol::{RouteChange as RoutesChange, RouteReport};
use bottle_lib::proposals::answer::{AnswerOutcome, Decision};
use bottle_lib::proposals::route_change::RouteChange;
use bottle_lib::proposals::scope::{GrantScope, RequestedScope};
use bottle_policy::route::edit::RouteEdit;
use bottle_protocol::queue::{Id, Proposal, Tool};
use bottle_protocol::session::bundle::Routes;
use bottle_queue::{Damaged, Listing, Pending, State as ProposalState};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use dialoguer::console::measure_text_width;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::style::Color;

use super::draw::draw;
use super::state::{Edited, Effect, State};
use super::view::{EffectInput, KnownEffect, View};
use crate::console::global::Global;
use crate::console::style::Styles;

const USUAL: (u16, u16) = (80, 24);

/// The routes of every bottle in these tests.
const ROUTES: &str = "\
routes:
- host: api.anthropic.com
  matches:
  - paths:
    - type: prefix
      value: /v1
    methods:
    - POST
- host: registry.npmjs.org
  matches:
  - methods:
    - GET
";

const ASKED: &str = "\
- host: registry.npmjs.org
  matches: [{methods: [POST], paths: [{type: prefix, value: /-/npm/v1/security}]}]
- host: nodejs.org
  matches: [{methods: [GET], paths: [{type: prefix, value: /dist}]}]
";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + seconds).expect("a time")
}

/// The current time in all these tests.
fn now() -> Timestamp {
    at(300)
}

fn id(number: u8) -> Id {
    Id::from_random([number; 16])
}

fn pending(number: u8, slug: &str, tool: Tool, file: &str, why: &str) -> Pending {
    let arrival_timestamp = at(i64::from(number));
    let proposal = Proposal {
        id: id(number),
        bottle_slug: slug.parse().expect("slug"),
        tool,
        proposed_file: file.to_owned(),
        justification: why.to_owned(),
        arrival_timestamp,
        revision: (!tool.reports()).then_some(1),
        expires_at: arrival_timestamp + SignedDuration::from_hours(23),
        asked_before: 0,
        excerpt: Vec::new(),
    };
    Pending { proposal, state: ProposalState::Waiting }
}

fn hosts(number: u8) -> Pending {
    let why =
        "npm install needs the tarballs of node itself, and npm audit posts what it found to the registry.";
    pending(number, "claude-demo", Tool::EgressAllow, ASKED, why)
}

fn secret(number: u8) -> Pending {
    let report = r#"{"found": "a GitHub token, 40 bytes", "host": "api.example.com", "method": "POST", "path": "/v1", "port": 443}"#;
    let why = "a request to api.example.com holds a GitHub token, 40 bytes";
    pending(number, "work", Tool::EgressTokenAllow, report, why)
}

fn push(number: u8) -> Pending {
    let report = r#"{"findings": [{"commit": "1f3a9c", "file": "tests/fixture.rs", "finding": "ghp_…", "line": 12,
        "marked": true, "rule": "github-pat"}], "refs": ["refs/heads/main"], "repository": "work"}"#;
    let why = "a push to work holds 1 thing that may be a secret";
    pending(number, "work", Tool::GitleaksAllow, report, why)
}

fn listing(pending: Vec<Pending>) -> Listing {
    Listing { pending, damaged: Vec::new() }
}

fn state(pending: Vec<Pending>) -> State {
    let mut state = State::new(listing(pending), now(), parse_typed);
    show(&mut state, USUAL);
    state
}

/// Computes the effect and prepares the layout, as the main loop does before it draws.
fn show(state: &mut State, size: (u16, u16)) {
    set_known(state, ROUTES, 1);
    state.lay_out(size, Styles::PLAIN, now());
}

fn set_known(state: &mut State, routes: &str, revision: u64) {
    let Some(EffectInput { pending, text, scope }) = state.effect_input() else { return };
    let now = Routes { revision, ..Routes::first(routes.parse().expect("routes")) };
    let grant = match scope {
        RequestedScope::Once => Ok(GrantScope::Once),
        RequestedScope::Run => Ok(GrantScope::Run),
        RequestedScope::Saved(_) => Err("the file is not yours".to_owned()),
    };
    let known = KnownEffect {
        id: pending.proposal.id.clone(),
        text: text.to_owned(),
        wanted: scope,
        grant,
        files: vec!["dev".parse().expect("name")],
        route_change: Some(RouteChange::new(&now, text)),
        since: None,
    };
    state.set_known(known);
}

fn key(letter: char) -> KeyEvent {
    let code = match letter {
        '\n' => KeyCode::Enter,
        '\x1b' => KeyCode::Esc,
        '\x7f' => KeyCode::Backspace,
        '↑' => KeyCode::Up,
        '↓' => KeyCode::Down,
        '→' => KeyCode::Right,
        '←' => KeyCode::Left,
        letter => KeyCode::Char(letter),
    };
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// Presses keys, and prepares the layout after each one. Returns the effect of the last key.
fn press(state: &mut State, keys: &str) -> Effect {
    let mut effect = Effect::Nothing;
    for letter in keys.chars() {
        effect = state.press(key(letter), now());
        show(state, USUAL);
    }
    effect
}

/// Pages the text that is shown in full to its end with Space, as the user must before an approval. Returns the number
/// of pages.
fn page_to_end(state: &mut State) -> usize {
    let shown = cursor(state).expect("a proposal");
    let mut pages = 0;
    while state.layout().unread(&shown) != Some(0) {
        press(state, " ");
        pages += 1;
        assert!(pages < 100, "{}", message(state));
    }
    pages
}

fn message(state: &State) -> String {
    state.current_message(now()).map(|message| message.words).unwrap_or_default()
}

fn cursor(state: &State) -> Option<Id> {
    state.rows().current().map(|row| row.id().clone())
}

/// Returns a short form of an answer.
fn given_answer((pending, decision): &(Pending, Decision)) -> String {
    let number = &pending.proposal.id.as_str()[..2];
    match decision {
        Decision::Approve { reason, routes, grant } => {
            let edited = if routes.is_some() { " edited" } else { "" };
            let once = if *grant == GrantScope::Once { " once" } else { "" };
            format!("yes{edited}{once} to {number}: {}", reason.as_deref().unwrap_or("-"))
        }
        Decision::Reject { reason } => format!("no to {number}: {reason}"),
    }
}

/// Returns a short form of the effect.
fn given(effect: &Effect) -> String {
    match effect {
        Effect::Answer(answers) => answers.iter().map(given_answer).collect::<Vec<_>>().join(", "),
        Effect::Nothing => "nothing".to_owned(),
        Effect::Leave => "leave".to_owned(),
        Effect::Change { change, weaken } => {
            let what = match &change.change {
                RoutesChange::Edit(RouteEdit { action, host, path, methods, .. }) => {
                    format!("{action:?} {host}{} {methods:?}", path.as_deref().unwrap_or_default())
                }
                RoutesChange::Undo { host } => format!("undo {host}"),
            };
            format!("{}: {what}, {weaken:?}", change.slug)
        }
        Effect::Edit { id, .. } => format!("edit {}", &id.as_str()[..2]),
    }
}

#[test]
fn each_key_has_its_effect() {
    let stale = || Pending { state: ProposalState::Stale, ..hosts(4) };
    for (keys, effect, words) in [
        // Proposal 1 asks for hosts, 2 for a secret, 3 for a push, and 4 for hosts although no process waits
        // for the answer.
        ("a", "yes to 01: -", "approving"),
        ("\na", "nothing", "7 lines of it not shown yet: Space shows the next page"),
        ("\n a", "yes to 01: -", "approving"),
        ("aa", "nothing", "it is already being answered"),
        ("ja", "nothing", ""),
        ("ja\n", "nothing", "give a reason; Esc cancels"),
        ("ja  \n", "nothing", "give a reason; Esc cancels"),
        ("jaa fixture\n", "yes to 02: a fixture", "approving"),
        ("jax\x7fok\n", "yes to 02: ok", "approving"),
        ("jawrong\x1b", "nothing", ""),
        ("jjrleave it out\n", "no to 03: leave it out", "rejecting"),
        ("rno\n", "no to 01: no", "rejecting"),
        ("r\x1bq", "leave", ""),
        ("Ga", "nothing", "no process waits for this answer (the client is gone); `r` dismisses it"),
        ("Gr", "no to 04: ", "dismissing"),
        ("Gm", "nothing", "no process waits for this answer (the client is gone); `r` dismisses it"),
        ("m", "edit 01", ""),
        ("jm", "nothing", "a proposal of egress-token-allow has no routes to edit"),
        ("→nna\x1b\x1b", "nothing", ""),
        ("?a", "nothing", ""),
        ("u", "nothing", ""),
        ("oa", "yes once to 01: -", "approving"),
        ("ooa", "nothing", "read all of it, and press `a` again to approve it"),
        ("ooa a", "nothing", "the file is not yours; `o` changes the scope"),
        ("oooa", "yes to 01: -", "approving"),
        ("ojka", "yes once to 01: -", "approving"),
        ("jo", "nothing", "an approval of this always holds until the bottle ends"),
        ("q", "leave", ""),
        ("\nq", "leave", ""),
        ("aq", "nothing", "an answer is in progress; press `q` again to quit, and `bottle audit show` shows"),
        ("aqq", "leave", "approving"),
        ("aqjq", "nothing", "an answer is in progress"),
        ("+", "nothing", "type BOTTLE HOST[/PATH], and flags"),
        ("+\x1b", "nothing", ""),
        ("+a.example\n", "claude-demo: Allow a.example [], Unasked", ""),
        ("\n-a.example/x --method put\n", "claude-demo: Deny a.example/x [\"put\"], Unasked", ""),
        ("j+a.example --undo\n", "work: undo a.example, Unasked", ""),
        ("+\n", "nothing", "the following required arguments were not provided:"),
        ("+a.example:1\n", "nothing", "a.example:1: write the host alone; ports go into `ports`"),
        ("-a.example --save\n", "nothing", "`--save` needs the command line"),
        ("+a.example\n+", "nothing", "another change of routes is in progress"),
        ("+a.example\nq", "nothing", "an answer is in progress"),
    ] {
        let mut state = state(vec![hosts(1), secret(2), push(3), stale()]);
        let outcome = press(&mut state, keys);
        assert_eq!(given(&outcome), effect, "{keys:?}");
        assert!(message(&state).starts_with(words), "{keys:?}: {}", message(&state));
        assert_eq!(words.is_empty(), message(&state).is_empty(), "{keys:?}: {}", message(&state));
    }
}

fn pushes(count: usize) -> Pending {
    let finding = |number: usize| serde_json::json!({"commit": "1f3a9c", "file": format!("f{number}"), "line": number, "rule": "github-pat"});
    let findings: Vec<_> = (0..count).map(finding).collect();
    let report = serde_json::json!({"findings": findings, "refs": ["refs/heads/main"], "repository": "work"});
    pending(1, "work", Tool::GitleaksAllow, &report.to_string(), "a push to work holds what may be secrets")
}

/// The last of many findings, the refs and the repository must be shown before the approval. They cannot be skipped.
#[test]
fn a_long_report_is_approved_only_after_it_was_paged_to_its_end() {
    let mut state = state(vec![pushes(120)]);
    assert_eq!(given(&press(&mut state, "a")), "nothing");
    assert_eq!(message(&state), "read all of it, and press `a` again to approve it");
    let text: Vec<String> = state.layout().lines().iter().map(ToString::to_string).collect();
    assert_eq!(text.iter().filter(|line| line.contains("file: f")).count(), 120);
    assert!(text.iter().any(|line| line.contains("repository: work")), "{text:?}");
    // A jump to the end skips the lines in between.
    press(&mut state, "Ga");
    assert!(message(&state).contains("not shown yet: `g` goes to the start"), "{}", message(&state));
    press(&mut state, "g");
    let pages = page_to_end(&mut state);
    assert!(pages > 20, "{pages}");
    press(&mut state, "a");
    assert_eq!(given(&press(&mut state, "fixtures\n")), "yes to 01: fixtures");
}

#[test]
fn only_what_was_shown_is_approved() {
    let mut state = state(vec![pushes(2)]);
    press(&mut state, "aa");
    // While the user types the reason, the file of the proposal is replaced.
    state.poll_succeeded(listing(vec![pushes(3)]), now());
    assert_eq!(given(&press(&mut state, "fixtures\n")), "nothing");
    assert!(message(&state).contains("or they changed"), "{}", message(&state));
}

/// A command can be approved until the bottle ends, or once.
#[test]
fn a_command_is_approved_for_the_run_or_once() {
    let report =
        r#"{"command": "make", "findings": [{"rule": "command", "command": "make", "why": "runs make"}]}"#;
    for (keys, effect, words) in [
        ("a", "yes to 01: -", ""),
        ("oa", "yes once to 01: -", "scope: this command, once"),
        ("ooa", "yes to 01: -", "scope: until the bottle ends"),
    ] {
        let mut state = state(vec![pending(1, "one", Tool::CommandAllow, report, "a program outside")]);
        assert!(screen(&mut state, USUAL).contains("command"), "the list shows what it is");
        press(&mut state, keys.trim_end_matches('a'));
        assert_eq!(message(&state), words, "{keys}");
        assert_eq!(given(&press(&mut state, "a")), effect, "{keys}");
    }
}

/// A change that weakens the protection is sent again only after the key `y`.
#[test]
fn a_weaker_change_needs_the_users_agreement() {
    let report = |live| RouteReport {
        host: "a.example".to_owned(),
        live,
        revision: 7,
        changed: true,
        routes: Vec::new(),
        gains: vec!["a.example: every request".to_owned()],
        losses: Vec::new(),
        not_followed: Vec::new(),
        weakenings: vec!["a.example: requests are not scanned".to_owned()],
    };
    for (keys, effect, words) in [
        ("n", "nothing", "nothing was changed"),
        ("\n", "nothing", "nothing was changed"),
        ("y", "claude-demo: Allow a.example [], At(7)", ""),
    ] {
        let mut state = state(vec![hosts(1)]);
        let Effect::Change { change, .. } = press(&mut state, "+a.example\n") else { panic!("a change") };
        assert!(state.is_busy());
        state.routes_changed(change.clone(), Ok(report(false)));
        show(&mut state, USUAL);
        let drawn = screen(&mut state, USUAL);
        assert!(
            drawn.contains("this weakens the protection: a.example: requests are not scanned"),
            "{drawn}"
        );
        assert!(drawn.contains("Change the routes nevertheless? [y/N]"), "{drawn}");
        let outcome = press(&mut state, keys);
        assert_eq!((given(&outcome).as_str(), message(&state).as_str()), (effect, words), "{keys:?}");
        if let Effect::Change { change, .. } = outcome {
            state.routes_changed(change, Ok(report(true)));
            assert!(message(&state).ends_with("`bottle allow claude-demo a.example --undo` undoes it"));
        }
    }
}

#[test]
fn shows_the_excerpt_of_a_finding_escaped() {
    let mut held = secret(1);
    held.proposal.excerpt = ["POST https://api.example.com/v1", "the body:", "  a\u{1b}[2Jb [redacted] c"]
        .map(str::to_owned)
        .into();
    let mut state = state(vec![held]);
    press(&mut state, "\n");
    let drawn = screen(&mut state, USUAL);
    assert!(drawn.contains("Excerpt, with the values redacted"), "{drawn}");
    assert!(drawn.contains("| POST https://api.example.com/v1"), "{drawn}");
    assert!(drawn.contains("b [redacted] c") && !drawn.contains('\u{1b}'), "{drawn}");
}

#[test]
fn shows_the_warnings_of_the_scanner_escaped() {
    let warning = |host: &str, found: &str| Warning {
        time: at(0),
        host: host.to_owned(),
        method: "POST".to_owned(),
        path: "/v1".to_owned(),
        found: found.to_owned(),
    };
    const TALL: (u16, u16) = (100, 60);
    let mut state = state(some());
    assert_eq!(state.shown_in_full(), None, "the preview shows no warnings");
    press(&mut state, "\n");
    let shown = state.shown_in_full().expect("shown").id.clone();
    let title = "Other requests of this bottle with warnings of the scanner";
    assert!(!screen(&mut state, TALL).contains(title));
    state.set_warnings(shown, vec![warning("a.example", "high entropy \u{1b}[2J in the body")]);
    let drawn = screen(&mut state, TALL);
    assert!(drawn.contains(title), "{drawn}");
    assert!(drawn.contains("POST a.example/v1: high entropy") && !drawn.contains('\u{1b}'), "{drawn}");
    state.set_warnings(id(99), vec![warning("b.example", "x")]);
    assert!(!screen(&mut state, TALL).contains(title), "warnings of another proposal");
}

#[test]
fn the_cursor_moves_in_the_list_and_the_view_in_the_detail() {
    for (keys, number, view) in [
        ("", 1, View::List),
        ("j", 2, View::List),
        ("k", 3, View::List),
        ("jjj", 1, View::List),
        ("Gk", 2, View::List),
        ("Gg↓", 2, View::List),
        ("j\n", 2, View::Detail { scroll: 0 }),
        ("jl←", 2, View::List),
        ("→n", 2, View::Detail { scroll: 0 }),
        ("→p", 3, View::Detail { scroll: 0 }),
        ("→\x1b", 1, View::List),
        ("→↓↓↑", 1, View::Detail { scroll: 1 }),
        ("→↓g", 1, View::Detail { scroll: 0 }),
    ] {
        let mut state = state(vec![hosts(1), hosts(2), hosts(3)]);
        assert_eq!(press(&mut state, keys), Effect::Nothing, "{keys:?}");
        assert_eq!((cursor(&state), state.view()), (Some(id(number)), view), "{keys:?}");
    }
}

#[test]
fn scrolling_stops_at_the_end_of_the_text() {
    let mut state = state(vec![hosts(1)]);
    press(&mut state, "→G");
    let View::Detail { scroll } = state.view() else { panic!("a detail") };
    press(&mut state, "↓  ");
    assert_eq!(state.view(), View::Detail { scroll });
    show(&mut state, (80, 200));
    assert_eq!(state.view(), View::Detail { scroll: 0 }, "all of it is on a larger screen");
}

#[test]
fn approves_only_a_proposal_shown_in_full() {
    let many: String = (0..20).map(|n| format!("- host: h{n}.example\n")).collect();
    let many = pending(1, "one", Tool::EgressAllow, &many, "many");
    let mut state = state(vec![many, hosts(2)]);
    assert_eq!(press(&mut state, "a"), Effect::Nothing);
    assert_eq!(
        (message(&state).as_str(), state.view()),
        ("read all of it, and press `a` again to approve it", View::Detail { scroll: 0 })
    );
    assert_eq!(press(&mut state, "a"), Effect::Nothing, "its end was not shown");
    page_to_end(&mut state);
    assert_eq!(given(&press(&mut state, "a")), "yes to 01: -");
    // The key is typed ahead: the screen was not drawn since the previous key.
    assert_eq!(state.press(key('n'), now()), Effect::Nothing);
    assert_eq!(state.press(key('a'), now()), Effect::Nothing);
    assert_eq!(message(&state), "it was not on the screen yet: press `a` again to approve it");
    show(&mut state, USUAL);
    page_to_end(&mut state);
    assert_eq!(given(&press(&mut state, "a")), "yes to 02: -");
}

#[test]
fn refuses_to_approve_routes_that_cannot_be_applied() {
    let mut state = state(vec![pending(1, "one", Tool::EgressAllow, "- host: 10.0.0.1\n", "why")]);
    assert_eq!(press(&mut state, "a"), Effect::Nothing);
    assert_eq!(press(&mut state, "a"), Effect::Nothing);
    assert!(message(&state).starts_with("it cannot be applied: "), "{}", message(&state));
    assert_eq!(press(&mut state, "m"), Effect::Nothing);
    assert!(message(&state).starts_with("it cannot be edited: "), "{}", message(&state));
    assert_eq!(given(&press(&mut state, "rno\n")), "no to 01: no");
}

#[test]
fn ignores_a_deciding_key_right_after_the_cursor_moved_by_itself() {
    let mut state = state(vec![hosts(1), hosts(2), hosts(3)]);
    press(&mut state, "j");
    state.poll_succeeded(listing(vec![hosts(2), hosts(3), hosts(4)]), now());
    assert_eq!(cursor(&state), Some(id(2)), "it stays with its question");
    state.poll_succeeded(listing(vec![hosts(3), hosts(4)]), now());
    show(&mut state, USUAL);
    assert_eq!(press(&mut state, "a"), Effect::Nothing);
    assert_eq!(
        message(&state),
        "egress-allow of claude-demo has just moved here; press the key again to decide it"
    );
    assert_eq!(given(&press(&mut state, "a")), "yes to 03: -");
    // After the delay, the key is accepted.
    state.poll_succeeded(listing(vec![hosts(4)]), now());
    state.answered(&id(3), Ok(outcome()), now());
    show(&mut state, USUAL);
    let later = now() + SignedDuration::from_secs(1);
    assert_eq!(given(&state.press(key('a'), later)), "yes to 04: -");
}

fn outcome() -> AnswerOutcome {
    AnswerOutcome {
        status: "approved",
        words: "was approved, and is live".to_owned(),
        effects: vec!["nodejs.org: a new host".to_owned(), "\u{1b}[2J".to_owned()],
        saved: None,
    }
}

#[test]
fn reports_an_answer_and_keeps_the_proposal_when_it_fails() {
    let mut state = state(vec![hosts(1), secret(2)]);
    press(&mut state, "\n");
    page_to_end(&mut state);
    press(&mut state, "ga");
    assert!(state.is_busy());
    assert_eq!(message(&state), "approving for claude-demo … 0 s");
    // The process that made the proposal removed it before the result arrived, but the proposal remains in the list.
    state.poll_succeeded(listing(vec![secret(2)]), now());
    assert_eq!((cursor(&state), state.view()), (Some(id(1)), View::Detail { scroll: 0 }));
    state.answered(&id(1), Err("this proposal has an answer already".to_owned()), now());
    assert!(!state.is_busy());
    assert_eq!(message(&state), "egress-allow of claude-demo: this proposal has an answer already");
    show(&mut state, USUAL);
    assert_eq!(given(&press(&mut state, "a")), "yes to 01: -");
    state.answered(&id(1), Ok(outcome()), now());
    assert!(message(&state).starts_with("egress-allow of claude-demo was approved, and is live: nodejs.org"));
    assert_eq!((cursor(&state), state.view()), (Some(id(2)), View::List));
}

#[test]
fn reports_that_the_viewed_proposal_was_removed() {
    for keys in ["\n", "jr because", "\nr because"] {
        let mut state = state(vec![hosts(1), secret(2)]);
        press(&mut state, keys);
        let gone = cursor(&state).expect("one");
        let left = if gone == id(1) { secret(2) } else { hosts(1) };
        state.poll_succeeded(listing(vec![left]), now());
        let words = "no longer waits: another process answered it, or the agent withdrew it";
        assert!(message(&state).ends_with(words), "{keys:?}: {}", message(&state));
        assert_eq!(state.view(), View::List, "{keys:?}");
        assert!(state.overlay().is_none(), "{keys:?}");
    }
}

#[test]
fn hides_a_proposal_that_another_process_answers_and_shows_it_again_if_that_fails() {
    let mut state = state(vec![hosts(1), secret(2)]);
    let answered = Pending { state: ProposalState::Answered, ..secret(2) };
    state.poll_succeeded(listing(vec![hosts(1), answered]), now());
    assert_eq!(state.rows().all().len(), 1);
    state.poll_succeeded(listing(vec![hosts(1), secret(2)]), now());
    assert_eq!(state.rows().all().len(), 2);
    // When the proposal reappears, its draft reappears too.
    let edited = Edited { text: Some("- host: nodejs.org\n".to_owned()), failed: None };
    state.edited(&id(1), "", edited);
    state.poll_succeeded(
        listing(vec![Pending { state: ProposalState::Answered, ..hosts(1) }, secret(2)]),
        now(),
    );
    state.poll_succeeded(listing(vec![hosts(1), secret(2)]), now());
    assert!(state.draft(&id(1)).is_some());
    state.poll_succeeded(listing(vec![secret(2)]), now());
    assert!(state.draft(&id(1)).is_none());
}

#[test]
fn shows_an_edit_before_approval_and_never_loses_it() {
    let mut state = state(vec![hosts(1)]);
    let Effect::Edit { id: of, text } = press(&mut state, "m") else { panic!("an edit") };
    assert!(text.starts_with("# Routes that claude-demo requests (egress-allow).\n"), "{text}");
    assert!(text.ends_with("- host: nodejs.org\n  matches:\n  - paths:\n    - type: prefix\n      value: /dist\n    methods:\n    - GET\n"), "{text}");
    let back = |text: &str| Edited { text: Some(text.to_owned()), failed: None };
    let failed = |text: Option<&str>| Edited {
        text: text.map(str::to_owned),
        failed: Some("the editor ended".to_owned()),
    };

    state.edited(&of, &text, back(&text));
    assert_eq!(message(&state), "nothing was changed");
    state.edited(&of, &text, failed(None));
    assert_eq!(message(&state), "the editor ended");
    state.edited(&of, &text, back("# only words\n\n"));
    assert!(message(&state).starts_with("the file was empty"), "{}", message(&state));
    assert!(state.draft(&of).is_none());

    state.edited(&of, &text, back("- host: nodejs.org\n  private: true\n"));
    assert!(message(&state).contains("take out `private`"), "{}", message(&state));
    show(&mut state, USUAL);
    page_to_end(&mut state);
    assert_eq!(press(&mut state, "a"), Effect::Nothing);
    assert!(message(&state).contains("take out `private`"), "{}", message(&state));
    let Effect::Edit { text: again, .. } = press(&mut state, "m") else { panic!("an edit") };
    assert_eq!(again, "- host: nodejs.org\n  private: true\n", "as it was left");
    state.edited(&of, &again, failed(Some("- host: nodejs.org\n")));
    assert!(message(&state).ends_with("your edit is kept: `m` continues it"), "{}", message(&state));

    state.edited(&of, &again, back("# mine\n[{host: nodejs.org, matches: [{methods: [GET]}]}]\n"));
    assert!(message(&state).starts_with("this is your edit: `a` approves it"), "{}", message(&state));
    show(&mut state, USUAL);
    page_to_end(&mut state);
    let Effect::Answer(answers) = press(&mut state, "a") else { panic!("an answer") };
    let [(_, Decision::Approve { routes, .. })] = &answers[..] else { panic!("one approval") };
    assert_eq!(
        routes.as_deref(),
        Some("routes:\n- host: nodejs.org\n  matches:\n  - methods:\n    - GET\n"),
        "in the canonical form"
    );
    state.answered(&of, Err("the keeper is gone".to_owned()), now());
    assert!(state.draft(&of).is_some(), "it can be tried again");
    press(&mut state, "u");
    assert!(state.draft(&of).is_none());
    // Without the edit, the text differs from the text that was shown.
    assert_eq!(press(&mut state, "a"), Effect::Nothing);
    press(&mut state, "g");
    page_to_end(&mut state);
    assert_eq!(given(&press(&mut state, "a")), "yes to 01: -");
}

#[test]
fn pasted_text_never_acts_as_keys() {
    let mut state = state(vec![hosts(1), secret(2)]);
    state.paste("aaarrr\nq");
    assert_eq!(message(&state), "pasted text decides nothing");
    press(&mut state, "ja");
    state.paste("a fixture\nof \u{1b}[2Jmine");
    assert_eq!(given(&press(&mut state, "\n")), "yes to 02: a fixture of [2Jmine");
}

fn anything() -> impl Strategy<Value = (u8, u8)> {
    (0u8..24, 0u8..8)
}

proptest! {
    #[test]
    fn random_keys_and_events_keep_the_state_consistent(
        steps in proptest::collection::vec(anything(), 0..60), columns in 0u16..100, rows in 0u16..40,
    ) {
        let all = || vec![hosts(1), secret(2), push(3), Pending { state: ProposalState::Stale, ..hosts(4) }, hosts(5)];
        let mut state = state(all());
        let mut in_progress = Vec::new();
        for (what, which) in steps {
            let keys = ['\n', '\x1b', 'a', 'r', 'm', 'u', 'j', 'k', 'n', 'p', '?', '→', '←', ' ', 'G', 'x', 'q', '\x7f'];
            let effect = match usize::from(what) {
                press if press < keys.len() => state.press(key(keys[press]), now()),
                18 => { state.poll_succeeded(listing(all().split_off(usize::from(which).min(5))), now()); Effect::Nothing }
                19 => { state.poll_succeeded(listing(all().into_iter().take(usize::from(which)).collect()), now()); Effect::Nothing }
                20 => { in_progress.pop().into_iter().for_each(|id| state.answered(&id, Ok(outcome()), now())); Effect::Nothing }
                21 => { in_progress.pop().into_iter().for_each(|id| state.answered(&id, Err("no".into()), now())); Effect::Nothing }
                22 => { state.edited(&id(which), "x", Edited { text: Some("- host: a.example\n".into()), failed: None }); Effect::Nothing }
                _ => { state.paste("text"); Effect::Nothing }
            };
            for (pending, _) in if let Effect::Answer(answers) = &effect { &answers[..] } else { &[] } {
                prop_assert!(!in_progress.contains(&pending.proposal.id), "answered twice");
                in_progress.push(pending.proposal.id.clone());
            }
            let length = state.rows().all().len();
            prop_assert!(state.rows().at() < length.max(1));
            show(&mut state, (columns, rows));
            let _ = drawn(&state, (columns, rows), Styles::PLAIN);
        }
    }
}

// Tests of the drawn screen.

fn drawn(state: &State, (columns, rows): (u16, u16), styles: Styles) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    terminal.draw(|frame| draw(frame, frame.area(), state, styles, now())).expect("drawn");
    terminal
}

fn screen(state: &mut State, size: (u16, u16)) -> String {
    show(state, size);
    letters(&drawn(state, size, Styles::PLAIN))
}

fn letters(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(buffer.area.width).max(1));
    let line = |row: &[Cell]| {
        let mut line = String::new();
        let mut at = 0;
        while let Some(cell) = row.get(at) {
            line.push_str(cell.symbol());
            // A wide character also covers the next cell.
            at += measure_text_width(cell.symbol()).max(1);
        }
        line.trim_end().to_owned() + "\n"
    };
    rows.map(line).collect()
}

fn some() -> Vec<Pending> {
    let block = "- host: docs.rs\n- host: static.docs.rs\n- host: crates.io\n";
    let refused =
        pending(4, "a-bottle-with-a-rather-long-name", Tool::EgressBlock, block, "cargo doc links there");
    vec![hosts(1), secret(2), push(3), refused, Pending { state: ProposalState::Stale, ..hosts(5) }]
}

#[test]
fn draws_the_list() {
    let mut state = state(some());
    insta::assert_snapshot!(screen(&mut state, USUAL));
}

#[test]
fn draws_a_secret_report_and_the_reason_prompt() {
    let mut state = state(some());
    press(&mut state, "jaa fixture of the tests");
    insta::assert_snapshot!(screen(&mut state, USUAL));
}

#[test]
fn draws_a_proposal_in_full() {
    let mut state = state(some());
    press(&mut state, "\n");
    insta::assert_snapshot!(screen(&mut state, USUAL));
}

#[test]
fn readme_shows_a_proposal_as_drawn() {
    let asked = "- host: nodejs.org\n  matches: [{methods: [GET], paths: [{type: prefix, value: /dist}]}]\n";
    let why = "npm install builds a native module and needs the headers of node.";
    let mut state = state(vec![pending(1, "demo", Tool::EgressAllow, asked, why), secret(2)]);
    press(&mut state, "\n");
    let seen = screen(&mut state, (80, 24));
    let readme = include_str!("../../../README.md");
    assert!(readme.contains(&seen), "README shows something else than\n{seen}");
}

#[test]
fn draws_a_push_report_in_full() {
    let mut state = state(some());
    press(&mut state, "jj\n");
    insta::assert_snapshot!(screen(&mut state, USUAL));
}

#[test]
fn draws_changed_routes_and_an_answer_in_progress() {
    let mut state = state(some());
    press(&mut state, "\n");
    page_to_end(&mut state);
    press(&mut state, "ga");
    let text = state.effect_input().map(|effect_input| effect_input.text.to_owned()).expect("routes");
    let live = Routes {
        revision: 3,
        ..Routes::first(format!("{ROUTES}- host: nodejs.org\n").parse().expect("routes"))
    };
    let since = Some(Ok(vec!["nodejs.org: a new host".to_owned(), "nodejs.org: every request".to_owned()]));
    let (route_change, files) = (Some(RouteChange::new(&live, &text)), Vec::new());
    state.set_known(KnownEffect {
        id: id(1),
        route_change,
        text,
        wanted: RequestedScope::Run,
        grant: Ok(GrantScope::Run),
        files,
        since,
    });
    state.lay_out(USUAL, Styles::PLAIN, now());
    insta::assert_snapshot!(letters(&drawn(&state, USUAL, Styles::PLAIN)));
}

#[test]
fn draws_an_empty_list() {
    insta::assert_snapshot!(screen(&mut state(Vec::new()), USUAL));
}

#[test]
fn draws_the_key_help() {
    let mut state = state(some());
    press(&mut state, "?");
    insta::assert_snapshot!(screen(&mut state, USUAL));
}

#[test]
fn draws_the_smallest_screen() {
    let mut state = state(some());
    let list = screen(&mut state, (40, 10));
    press(&mut state, "\n");
    let detail = screen(&mut state, (40, 10));
    press(&mut state, "\x1b");
    let empty = screen(&mut super::tests::state(Vec::new()), (40, 10));
    insta::assert_snapshot!(format!("{list}----\n{detail}----\n{empty}"));
}

/// Proposals whose text is long, contains escape sequences, or imitates lines of bottle itself.
fn hostile() -> Vec<Pending> {
    let why = format!(
        "\u{1b}[2J\u{1b}]52;c;ZXZpbA==\u{7}all is well\nApproval would allow\n  + nothing at all\n\u{202e}gnp.exe\t{}\n日本語{}",
        "x".repeat(300),
        "語".repeat(60),
    );
    let label = "a".repeat(60);
    let host = format!("{label}.{label}.{label}.evil.example");
    let file = format!(
        "- host: {host}\n  matches: [{{methods: [GET], paths: [{{type: prefix, value: '/\u{202e}{}'}}]}}]\n",
        "p".repeat(200)
    );
    vec![
        pending(1, "one", Tool::EgressAllow, &file, &why),
        pending(
            2,
            "two",
            Tool::GitleaksAllow,
            "{\"rule\": \"\u{1b}[31m\", \"file\": \"a\\nApproval would allow\"}",
            &why,
        ),
        pending(3, "three", Tool::EgressAllow, "no routes \u{1b}[2J", &why),
    ]
}

#[test]
fn draws_long_and_hostile_text() {
    let mut state = state(hostile());
    let list = screen(&mut state, USUAL);
    press(&mut state, "\n");
    let first = screen(&mut state, (60, 40));
    press(&mut state, "n");
    let second = screen(&mut state, (60, 30));
    insta::assert_snapshot!(format!("{list}----\n{first}----\n{second}"));
}

#[test]
fn text_from_a_bottle_never_controls_the_terminal() {
    for size in [(80, 24), (40, 10), (200, 60), (20, 5)] {
        let mut state = state(hostile());
        for keys in ["j", "j", "\n", "n", "G", "p", "\x1b", "r", "\x1b"] {
            press(&mut state, keys);
            show(&mut state, size);
            let terminal = drawn(&state, size, Styles::PLAIN);
            for cell in terminal.backend().buffer().content() {
                let acts = cell.symbol().chars().any(|letter| letter.is_control() || letter == '\u{202e}');
                assert!(!acts, "{:?}", cell.symbol());
            }
        }
    }
}

#[test]
fn uses_only_the_terminals_own_colours() {
    let global = Global { json: false, quiet: false, verbose: 0, color: clap::ColorChoice::Always };
    let coloured = Styles::for_stream(&std::io::stderr(), &global);
    for (styles, any) in [(Styles::PLAIN, false), (coloured, true)] {
        let mut state = state(some());
        let mut seen = std::collections::BTreeSet::new();
        for keys in ["", "j", "j", "\n", "p", "\x1b", "?"] {
            press(&mut state, keys);
            state.lay_out(USUAL, styles, now());
            for cell in drawn(&state, USUAL, styles).backend().buffer().content() {
                assert_eq!(cell.bg, Color::Reset);
                seen.insert(format!("{:?}", cell.fg));
            }
            // Prepares the layout again, because the next colours need newly styled lines.
            state.poll_succeeded(listing(some()), now());
        }
        assert_eq!(seen.len() > 1, any, "{seen:?}");
        let own = ["Reset", "Red", "Green", "Yellow", "Blue", "Magenta", "Cyan"];
        assert!(seen.iter().all(|color| own.contains(&color.as_str())), "{seen:?}");
    }
}

#[test]
fn reports_damaged_files() {
    let damaged = Damaged { path: "/b/queue/one/x".into(), why: "it is not a file of the queue".to_owned() };
    let both = Listing { pending: vec![hosts(1)], damaged: vec![damaged.clone(), damaged] };
    let state = State::new(both, now(), parse_typed);
    assert_eq!(message(&state), "/b/queue/one/x: it is not a file of the queue; it was skipped (and 1 more)");
}
