//! Tests of the pages without a server: what a page shows, in which order, and how it looks.

use bottle_host::budget::OnSpent;
use bottle_keeper::protocol::BudgetChange;
use bottle_lib::dashboard::action::{Action, actions_for};
use bottle_lib::dashboard::model::{Bottle, BottleState, Filter, Group};
use bottle_lib::dashboard::sample::{bottle as sample_bottle, detail, snapshot};
use bottle_lib::line_diff::Changed;
use bottle_lib::proposals::review::{Choice, FileChange, Listed, Review};
use bottle_lib::proposals::scope::RequestedScope;
use bottle_policy::names::Name;
use bottle_protocol::queue::Tool;

use super::{answer, bottle, bottles, confirm, confirm_raise, proposal, proposals, raise};

/// Text that must be escaped, and its form in a page.
const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[2J\u{202e}";
const ESCAPED: &str = "&lt;script&gt;alert(1)&lt;/script&gt;";

fn list(filter: &Filter) -> String {
    bottles(&snapshot(), filter, "/d/").into_string()
}

/// Returns the part of a page from `start` to the first `end` after it.
fn part<'p>(page: &'p str, start: &str, end: &str) -> &'p str {
    let from = page.find(start).unwrap_or_else(|| panic!("no {start}: {page}"));
    let rest = &page[from..];
    rest.find(end).map_or(rest, |at| &rest[..at])
}

/// Checks that the page contains these texts in this order.
#[track_caller]
fn in_order(page: &str, texts: &[&str]) {
    let mut rest = page;
    for text in texts {
        let at = rest.find(text).unwrap_or_else(|| panic!("no {text} after the texts before it: {page}"));
        rest = &rest[at + text.len()..];
    }
}

#[track_caller]
fn is_escaped(page: &str) {
    assert!(page.contains(ESCAPED), "{page}");
    assert!(!page.contains("<script") && !page.contains(['\u{1b}', '\u{202e}']), "{page}");
}

fn one_listed(waits: bool) -> Listed {
    Listed {
        id: "00000000-0000-4000-8000-000000000000".parse().expect("an id"),
        slug: "one".to_owned(),
        title: "one asks for hosts".to_owned(),
        why: "to install".to_owned(),
        state: if waits { "3 h left" } else { "expired" }.to_owned(),
        waits,
    }
}

fn review(tool: Tool) -> Review {
    let has_routes = !tool.reports();
    Review {
        listed: one_listed(true),
        asked: "asked 3 min ago, at 2026-01-01 10:00:00 CET".to_owned(),
        justification: "to install".to_owned(),
        request: "routes:\n- host: a.example\n".to_owned(),
        excerpt: Vec::new(),
        gains: has_routes.then(|| Ok(vec!["a.example: a new host".to_owned()])),
        diff: Vec::new(),
        warnings: Vec::new(),
        other_requests: vec!["2026-01-01 09:58:00 CET GET b.example/x: as random as a key".to_owned()],
        tool,
        routes: has_routes.then(|| "routes:\n- host: a.example\n".to_owned()),
        is_edited: false,
        files: if has_routes { vec!["dev".parse::<Name>().expect("a name")] } else { Vec::new() },
        saved: None,
        digest: "d1".to_owned(),
    }
}

#[test]
fn the_list_has_groups_and_folds_ended_bottles() {
    let page = list(&Filter::default());
    in_order(
        &page,
        &[
            "Waiting for you (4)",
            ">docs-7<",
            ">refactor-parser<",
            ">scraper<",
            ">torn<",
            "Running (2)",
            ">api-fix<",
            ">fresh<",
            "Kept (1)",
            ">last-week<",
            "Ended (1)",
            ">done<",
        ],
    );
    assert!(part(&page, "id=\"g-kept\"", ">").ends_with(" open"), "{page}");
    assert!(!part(&page, "id=\"g-ended\"", ">").contains("open"), "ended bottles are folded: {page}");
    for (word, class) in [("kept", "kept"), ("ended", "quiet-state"), ("paused", "warn"), ("locked", "bad")] {
        assert!(page.contains(&format!("<span class=\"state {class}\">{word}</span>")), "{word}: {page}");
    }
    // On a narrow screen, each cell shows the title of its column.
    let row = part(&page, "id=\"b-api-fix\"", "</tr>");
    in_order(row, &["data-title=\"State\"", "data-title=\"Age\">2 h<", "data-title=\"Last 30 minutes\""]);
    assert_eq!(row.matches("<td ").count(), row.matches("data-title=").count(), "{row}");
}

#[test]
fn a_filter_shows_matching_bottles_unfolded() {
    let page = list(&Filter::new("DONE", None));
    assert!(part(&page, "id=\"g-ended\"", ">").ends_with(" open") && !page.contains("api-fix"), "{page}");
    let page = list(&Filter::new("", Some(Group::Kept)));
    assert!(page.contains(">last-week<") && !page.contains(">done<"), "{page}");
    assert!(list(&Filter::new("nothing has this", None)).contains("No bottle matches the filter"));
    let form = super::filter_form(&Filter::new("\"><script>", Some(Group::Kept)), "/d/").into_string();
    assert!(
        form.contains("value=\"&quot;&gt;&lt;script&gt;\"") && form.contains("value=\"kept\" selected"),
        "{form}"
    );
    let filter = Filter::new("a b", Some(Group::Ended));
    assert_eq!(super::filter_query(&filter), [("q", "a b"), ("show", "ended")]);
}

#[test]
fn budgets_have_names_without_notation_and_charts_have_scales() {
    let snapshot = snapshot();
    let page = bottle(&snapshot.bottles[0], Some(&detail()), &snapshot, "/d/").into_string();
    assert!(page.contains("<strong>claude per day, manifest dev</strong>"), "{page}");
    for text in [&page, &list(&Filter::default())] {
        assert!(!text.contains(">bottle:dev") && !text.contains("bottle:dev claude"), "{text}");
    }
    in_order(
        &page,
        &["<span>0</span><span>2.00M</span>", "<span>31.0k</span><span>0</span>", "30 min ago", "now"],
    );
    assert!(list(&Filter::default()).contains("0 to 31.0k a minute"));
}

#[test]
fn actions_that_delete_are_apart_and_look_different() {
    let snapshot = snapshot();
    let page = bottle(&snapshot.bottles[0], Some(&detail()), &snapshot, "/d/").into_string();
    in_order(
        &page,
        &[
            "id=\"a-pause\"",
            "id=\"a-stop\"",
            "id=\"budgets\"",
            "id=\"decisions\"",
            "Delete its work",
            "id=\"a-kill\"",
        ],
    );
    let kill = part(&page, "<ul class=\"action-list danger-zone\">", "</ul>");
    in_order(kill, &["button danger", "id=\"a-kill\"", "deletes all work"]);
    assert_eq!(page.matches("button danger").count(), 1, "{page}");
    let slug = || "one".parse().expect("a slug");
    let stop = |policy| Action::Order { slug: slug(), order: BudgetChange::Stop(policy) };
    for (action, class) in [
        (stop(OnSpent::Kill), "danger"),
        (Action::Discard { slug: slug() }, "danger"),
        (stop(OnSpent::Freeze), "main"),
        (Action::Stop { slug: slug() }, "main"),
    ] {
        let form = confirm(&action, "one", "/d/x", "/d/", "t").into_string();
        assert!(part(&form, "<button", ">").contains(&format!("{class}\" ")), "{form}");
        assert!(form.contains(&action.effect()), "{form}");
    }
    let approve =
        answer(&review(Tool::EgressAllow), true, &Choice::default(), None, "/d/", "t").into_string();
    assert!(part(&approve, "<button", ">").contains("approve\" "), "{approve}");
}

#[test]
fn a_page_offers_what_suits_the_state() {
    let snapshot = snapshot();
    for (state, status) in
        [(BottleState::Kept, "kept"), (BottleState::Ended, "ended"), (BottleState::Running, "running")]
    {
        let one = sample_bottle("one", state, status);
        let page = bottle(&one, None, &snapshot, "/d/").into_string();
        let names: Vec<&str> = actions_for(&one).iter().map(Action::name).collect();
        assert_eq!(page.matches("id=\"a-").count(), names.len(), "{status}: {page}");
        for name in names {
            assert!(page.contains(&format!("href=\"/d/bottles/one/{name}\"")), "{status} {name}: {page}");
        }
    }
}

#[test]
fn a_raise_shows_the_resulting_limit() {
    let snapshot = snapshot();
    let meter = &snapshot.bottles[0].meters[0];
    let ask = raise(meter, "/d/raise", "/d/", "5M", Some("The number is wrong.")).into_string();
    assert!(
        ask.contains("value=\"5M\"") && ask.contains("role=\"alert\"") && !ask.contains("method=\"post\""),
        "{ask}"
    );
    let page = confirm_raise(meter, 500_000, "/d/raise", "/d/", "t").into_string();
    in_order(
        &page,
        &["method=\"post\"", "name=\"limit\" value=\"2000000\"", "2,000,000", "+ 500,000", "2,500,000"],
    );
    let most = confirm_raise(meter, u64::MAX, "/d/raise", "/d/", "t").into_string();
    assert!(most.contains("18,446,744,073,709,551,615"), "{most}");
}

#[test]
fn proposals_for_which_no_process_waits_are_folded() {
    let listed = [one_listed(false), Listed { title: "two asks".to_owned(), ..one_listed(true) }];
    let page = proposals(&listed, &[], "/d/").into_string();
    in_order(&page, &["two asks", "<details", "No longer waiting (1)", "one asks for hosts", "expired"]);
    assert!(!part(&page, "<details", ">").contains(" open"), "{page}");
    assert!(!proposals(&listed[1..], &[], "/d/").into_string().contains("<details"));
}

#[test]
fn a_proposal_is_first_and_other_requests_are_labelled() {
    let page = proposal(&review(Tool::EgressAllow), "/d/").into_string();
    in_order(
        &page,
        &[
            "asked 3 min ago, at 2026-01-01 10:00:00 CET",
            "Effect of this proposal",
            "a.example: a new host",
            "Approve…",
            "Edit…",
            "Reject…",
            "Other requests of this bottle",
            "09:58:00 CET GET b.example/x",
        ],
    );
    let report = proposal(&review(Tool::GitleaksAllow), "/d/").into_string();
    assert!(!report.contains("Edit…"), "a report has no routes: {report}");
    let alone = Review { other_requests: Vec::new(), ..review(Tool::EgressAllow) };
    assert!(!proposal(&alone, "/d/").into_string().contains("Other requests"));
}

#[test]
fn an_approval_has_the_scopes_of_the_terminal_and_shows_the_changed_file() {
    let scope = RequestedScope::Saved(Some("dev".parse().expect("a name")));
    let choice = Choice { routes: Some("routes: []\n".to_owned()), scope };
    let lines = vec![Changed::Added("- host: a.example".to_owned()), Changed::Gap];
    let file = FileChange { path: "/home/u/.bottle/bottles/dev.md".into(), diff: Ok(lines) };
    let saved = Review { saved: Some(Ok(file)), is_edited: true, ..review(Tool::EgressAllow) };
    let page = answer(&saved, true, &choice, Some("Nothing was answered yet."), "/d/", "t").into_string();
    in_order(
        &page,
        &[
            "Nothing was answered yet.",
            "Your edit would allow",
            "bottles/dev.md after the approval",
            "<ins>+ - host: a.example</ins>",
            "name=\"digest\" value=\"d1\"",
            "name=\"routes\" value=\"routes: []\n\"",
            "value=\"run\"",
            "value=\"once\"",
            "value=\"save:dev\" checked",
        ],
    );
    // What cannot be applied cannot be approved.
    let bad = Review { gains: Some(Err("line 1: no".to_owned())), ..review(Tool::EgressAllow) };
    let page = answer(&bad, true, &Choice::default(), None, "/d/", "t").into_string();
    assert!(page.contains("It cannot be applied: line 1: no") && !page.contains("<button"), "{page}");
    let unsaved = Review { saved: Some(Err("it is not yours".to_owned())), ..review(Tool::EgressAllow) };
    let page = answer(&unsaved, true, &Choice::default(), None, "/d/", "t").into_string();
    assert!(page.contains("It cannot be saved: it is not yours"), "{page}");
}

#[test]
fn hostile_text_is_escaped_on_every_page() {
    let hostile = || HOSTILE.to_owned();
    let one = Bottle {
        label: Some(hostile()),
        agent: hostile(),
        problem: Some(hostile()),
        paused: Some(hostile()),
        bottles: vec![hostile()],
        ..sample_bottle("one", BottleState::Running, "running")
    };
    let mut snapshot = snapshot();
    snapshot.bottles = vec![one];
    snapshot.problems = vec![hostile()];
    let mut detail = detail();
    detail.sources[0].model = hostile();
    is_escaped(&bottles(&snapshot, &Filter::default(), "/d/").into_string());
    is_escaped(&bottle(&snapshot.bottles[0], Some(&detail), &snapshot, "/d/").into_string());
    let listed = Listed { title: hostile(), why: hostile(), ..one_listed(true) };
    is_escaped(&proposals(&[listed], &[hostile()], "/d/").into_string());
    let file = FileChange { path: hostile().into(), diff: Ok(vec![Changed::Same(hostile())]) };
    let review = Review {
        justification: hostile(),
        request: hostile(),
        excerpt: vec![hostile()],
        gains: Some(Ok(vec![hostile()])),
        diff: vec![(true, hostile())],
        warnings: vec![hostile()],
        other_requests: vec![hostile()],
        saved: Some(Ok(file)),
        ..review(Tool::EgressAllow)
    };
    is_escaped(&proposal(&review, "/d/").into_string());
    is_escaped(&answer(&review, true, &Choice::default(), Some(HOSTILE), "/d/", "t").into_string());
    is_escaped(&super::edit(&review, ESCAPED_BY_MAUD, Some(HOSTILE), "/d/", "t").into_string());
}

/// Text of the user, which the page for edits shows as it is, apart from the escapes of HTML.
const ESCAPED_BY_MAUD: &str = "</textarea><script>";
