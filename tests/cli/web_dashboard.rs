//! Tests `bottle dashboard --web`. A plain HTTP client sends the requests that must be refused. A headless Chromium
//! shows the pages: the link, lists, an action, the keyboard, and the accessibility tree.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_test_support::browser::{AccessibleNode, Browser};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;

use crate::asking;
use crate::dashboard::{PROPOSAL, dashboard_home, propose};
use crate::home::{bottle, run};

/// How long the server may take for a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// The environment variable with a directory for screenshots, for developers who want to see the pages.
const SCREENSHOTS: &str = "BOTTLE_TEST_SCREENSHOTS";

/// A running dashboard. The process is killed when the value is dropped.
struct Web {
    child: Child,
    authority: String,
    /// The path of the one-time link.
    link: String,
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A response.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Web {
    fn start(home: &TestHome) -> Result<Self> {
        let mut command = home.program(["dashboard", "--web"])?.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("output")?).read_line(&mut line)?;
        let rest = line.trim().strip_prefix("http://").context("a link")?;
        let (authority, path) = rest.split_once('/').context("a path")?;
        Ok(Self { child, authority: authority.to_owned(), link: format!("/{path}") })
    }

    fn url(&self) -> String {
        format!("http://{}{}", self.authority, self.link)
    }

    /// Sends a request with these headers, and no others.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer> {
        let mut stream = TcpStream::connect_timeout(&self.authority.parse()?, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            request += "Content-Type: application/x-www-form-urlencoded\r\n";
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("a response")?;
        let mut lines = head.lines();
        let status =
            lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).context("a status")?;
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Ok(Answer { status, headers, body: body.to_owned() })
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        let host = [("Host", self.authority.as_str())];
        self.send("GET", path, &[&host, headers].concat(), "")
    }

    /// Opens the link. Returns the cookie and the directory of the pages.
    fn open(&self) -> Result<(String, String)> {
        let opened = self.get(&self.link, &[])?;
        ensure!(opened.status == 200, "{opened:?}");
        let cookie = &opened.headers["set-cookie"];
        for part in ["HttpOnly", "SameSite=Strict"] {
            ensure!(cookie.contains(part), "{cookie}");
        }
        let pair = cookie.split(';').next().context("a cookie")?;
        let directory = cookie.split("Path=").nth(1).and_then(|rest| rest.split(';').next());
        Ok((pair.to_owned(), directory.context("a path")?.to_owned()))
    }
}

/// The value of a hidden field of a form.
fn hidden(page: &str, name: &str) -> Result<String> {
    let start = page.split(&format!("name=\"{name}\" value=\"")).nth(1).context("a field")?;
    Ok(start.split('"').next().context("a value")?.to_owned())
}

#[test]
fn only_the_browser_with_the_link_gets_pages() -> Result<()> {
    let home = dashboard_home()?;
    let web = Web::start(&home)?;
    let own = web.authority.clone();
    // These requests do not use the one-time link, or use it in a wrong way.
    for (path, headers, status, words) in [
        ("/", vec![("Host", own.as_str())], 403, "has not opened the dashboard"),
        ("/open/00", vec![("Host", own.as_str())], 410, "used before"),
        (&web.link, vec![("Host", "evil.example")], 421, "Wrong address"),
        (&web.link, vec![("Host", own.as_str()), ("Sec-Purpose", "prefetch")], 503, "loaded ahead"),
    ] {
        let answer = web.send("GET", path, &headers, "")?;
        ensure!(answer.status == status && answer.body.contains(words), "{path} {headers:?}: {answer:?}");
        ensure!(!answer.headers.contains_key("set-cookie"), "{answer:?}");
    }
    let (cookie, directory) = web.open()?;
    let stolen = web.get(&web.link, &[])?;
    ensure!(stolen.status == 410 && !stolen.headers.contains_key("set-cookie"), "{stolen:?}");
    let with = ("Cookie", cookie.as_str());
    let page = web.get(&directory, &[with])?;
    ensure!(page.status == 200 && page.body.contains(">one</a>"), "{page:?}");
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        ensure!(page.headers.get(name).is_some_and(|found| found == value), "{name}: {:?}", page.headers);
    }
    let policy = &page.headers["content-security-policy"];
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"] {
        ensure!(policy.contains(part) && !policy.contains("unsafe"), "{policy}");
    }
    ensure!(!page.body.contains("style=") && !page.body.contains("onclick"), "no inline style or script");
    // These requests do not come from this site, although most of them have the cookie.
    for (method, headers, words) in [
        ("GET", vec![with, ("Sec-Fetch-Site", "cross-site")], "from another site"),
        ("GET", vec![with, ("Sec-Fetch-Site", "same-site")], "from another site"),
        ("GET", vec![("Cookie", "bottle-1=x")], "has not opened"),
        ("POST", vec![with], "from another site"),
        ("POST", vec![with, ("Origin", "https://evil.example")], "from another site"),
        ("POST", vec![with, ("Origin", "null")], "from another site"),
    ] {
        let headers = [&[("Host", own.as_str())][..], &headers].concat();
        let answer = web.send(method, &format!("{directory}bottles/one/stop"), &headers, "")?;
        ensure!(answer.status == 403 && answer.body.contains(words), "{method} {headers:?}: {answer:?}");
    }
    let origin = format!("http://{own}");
    let headers = [("Host", own.as_str()), with, ("Origin", origin.as_str())];
    for body in ["", "token=", "token=00"] {
        let answer = web.send("POST", &format!("{directory}bottles/one/stop"), &headers, body)?;
        ensure!(answer.status == 403 && answer.body.contains("not of this dashboard"), "{body}: {answer:?}");
    }
    ensure!(web.send("PUT", &directory, &headers, "")?.status == 405);
    let big = format!("token={}", "x".repeat(64 << 10));
    ensure!(web.send("POST", &format!("{directory}bottles/one/stop"), &headers, &big)?.status == 403);
    for path in
        ["bottles/none", "bottles/one/none", "none", "proposals/x", "usage?by=nothing", "bottles/..%2f"]
    {
        let answer = web.get(&format!("{directory}{path}"), &[with])?;
        ensure!(answer.status == 404, "{path}: {answer:?}");
    }
    let active = run(&home, &["list", "--json"])?.json()?;
    ensure!(active[0]["status"] == "running", "nothing was stopped: {active}");
    Ok(())
}

#[test]
fn forms_act_with_their_token_and_only_once() -> Result<()> {
    let home = dashboard_home()?;
    let web = Web::start(&home)?;
    // Another dashboard of the same home does not disturb this one.
    let other = Web::start(&home)?;
    let (cookie, directory) = web.open()?;
    let (other_cookie, other_directory) = other.open()?;
    let with = ("Cookie", cookie.as_str());
    ensure!(other.get(&other_directory, &[("Cookie", &format!("{cookie}; {other_cookie}"))])?.status == 200);
    ensure!(other.get(&other_directory, &[with])?.status == 403);
    let origin = format!("http://{}", web.authority);
    let headers = [("Host", web.authority.as_str()), with, ("Origin", origin.as_str())];
    let budget = "scope=bottle%3Adev&provider=llm.example&window=day";
    let asked = web.get(&format!("{directory}bottles/one/raise?{budget}"), &[with])?;
    ensure!(asked.body.contains("Tokens to add") && !asked.body.contains("method=\"post\""), "{asked:?}");
    let page = web.get(&format!("{directory}bottles/one/raise?{budget}&tokens=80000"), &[with])?;
    let (token, limit) = (hidden(&page.body, "token")?, hidden(&page.body, "limit")?);
    ensure!(limit == "20000" && page.body.contains("The limit becomes 100,000 tokens"), "{page:?}");
    let wrong = web.get(&format!("{directory}bottles/one/raise?{budget}&tokens=5M"), &[with])?;
    ensure!(wrong.status == 422 && wrong.body.contains("role=\"alert\""), "{wrong:?}");
    let raise = format!("{directory}bottles/one/raise");
    for bad in ["0", "-1", "5M", ""] {
        let body = format!("token={token}&{budget}&limit={limit}&tokens={bad}");
        let answer = web.send("POST", &raise, &headers, &body)?;
        ensure!(answer.status == 422 && answer.body.contains("role=\"alert\""), "{bad}: {answer:?}");
    }
    let body = format!("token={token}&{budget}&limit={limit}&tokens=80000");
    let done = web.send("POST", &raise, &headers, &body)?;
    ensure!(done.status == 303, "{done:?}");
    let after = web.get(&done.headers["location"], &[with])?;
    ensure!(after.body.contains("the limit is now 100,000 tokens"), "{after:?}");
    // The same form is refused when it is sent again, because the limit has changed meanwhile.
    let again = web.send("POST", &raise, &headers, &body)?;
    ensure!(again.status == 422 && again.body.contains("changed meanwhile"), "{again:?}");
    // An answer needs the digest of the proposal that was shown.
    let _asker = propose(&home, PROPOSAL)?;
    let list = web.get(&format!("{directory}proposals"), &[with])?;
    ensure!(list.body.contains("to install the packages"), "{list:?}");
    let approve = format!("{directory}proposals/00000000-0000-4000-8000-000000000000/approve");
    let page = web.get(&approve, &[with])?.body;
    ensure!(page.contains("registry.example: a new host") && page.contains("for the next request"), "{page}");
    let reject = format!("{directory}proposals/00000000-0000-4000-8000-000000000000/reject");
    let stale = web.send("POST", &reject, &headers, &format!("token={token}&digest=00&reason=no"))?;
    let shown = web.get(&stale.headers["location"], &[with])?;
    ensure!(shown.body.contains("nothing was answered"), "{shown:?}");
    let form = web.get(&reject, &[with])?;
    let digest = hidden(&form.body, "digest")?;
    let body = format!("token={token}&digest={digest}&reason=no");
    let done = web.send("POST", &reject, &headers, &body)?;
    let shown = web.get(&done.headers["location"], &[with])?;
    ensure!(shown.body.contains("rejected") && shown.body.contains("No proposal waits"), "{shown:?}");
    Ok(())
}

#[test]
fn an_edit_and_a_saved_approval_are_shown_before_they_apply() -> Result<()> {
    let mut home = dashboard_home()?;
    // A manifest with one route per line can be extended.
    let manifest =
        bottle("[sleep, \"600\"]").replace("\n---\n", "\negress:\n  routes:\n    - host: llm.example\n---\n");
    home.bottle("dev", &manifest)?;
    let _asker = propose(&home, PROPOSAL)?;
    let web = Web::start(&home)?;
    let (cookie, directory) = web.open()?;
    let with = ("Cookie", cookie.as_str());
    let origin = format!("http://{}", web.authority);
    let headers = [("Host", web.authority.as_str()), with, ("Origin", origin.as_str())];
    let proposal = format!("{directory}proposals/00000000-0000-4000-8000-000000000000");
    let form = web.get(&format!("{proposal}/edit"), &[with])?.body;
    ensure!(form.contains("<textarea") && form.contains("- host: registry.example"), "{form}");
    let token = hidden(&form, "token")?;
    for (routes, words) in [("nonsense", "cannot be applied"), ("", "cannot be applied")] {
        let answer = web.send(
            "POST",
            &format!("{proposal}/edit"),
            &headers,
            &format!("token={token}&routes={routes}"),
        )?;
        ensure!(answer.status == 422 && answer.body.contains(words), "{routes}: {answer:?}");
    }
    ensure!(web.send("POST", &format!("{proposal}/edit"), &headers, "routes=x")?.status == 403, "no token");
    let edit = "routes=-+host%3A+registry.example%0D%0A++matches%3A+%5B%7Bmethods%3A+%5BGET%5D%7D%5D%0D%0A";
    let edited = web.send("POST", &format!("{proposal}/edit"), &headers, &format!("token={token}&{edit}"))?;
    ensure!(edited.status == 200 && edited.body.contains("Your edit would allow"), "{edited:?}");
    ensure!(edited.body.contains("GET") && edited.body.contains("value=\"save:dev\""), "{edited:?}");
    // The digest of the page for the run does not cover the change of the manifest, so the change is shown first.
    let digest = hidden(&edited.body, "digest")?;
    let approve = format!("token={token}&digest={digest}&{edit}&scope=save:dev");
    let shown = web.send("POST", &format!("{proposal}/approve"), &headers, &approve)?;
    ensure!(shown.status == 422 && shown.body.contains("Nothing was answered yet"), "{shown:?}");
    ensure!(shown.body.contains("dev.md after the approval"), "{shown:?}");
    ensure!(hidden(&shown.body, "digest")? != digest, "the digest covers the change of the manifest");
    // The digest of an edit approves nothing else.
    let other = format!("token={token}&digest={digest}&scope=run");
    let shown = web.send("POST", &format!("{proposal}/approve"), &headers, &other)?;
    ensure!(shown.status == 422 && shown.body.contains("Nothing was answered yet"), "{shown:?}");
    let bad = format!("token={token}&digest={digest}&scope=save:../x");
    ensure!(web.send("POST", &format!("{proposal}/approve"), &headers, &bad)?.status == 404);
    ensure!(std::fs::read_to_string(home.bottle_home().join("bottles/dev.md"))? == manifest);
    ensure!(web.get(&format!("{directory}proposals"), &[with])?.body.contains("one asks for hosts"));
    Ok(())
}

#[test]
fn an_edit_is_approved_and_routes_that_cannot_be_saved_are_shown() -> Result<()> {
    let test = "an approval on the web dashboard";
    let Some(home) = asking::running_bottle(test, "linux", &[])? else { return Ok(()) };
    let (asks, id) = asking::propose(&home, "api.site.example")?;
    let web = Web::start(&home)?;
    let (cookie, directory) = web.open()?;
    let origin = format!("http://{}", web.authority);
    let headers =
        [("Host", web.authority.as_str()), ("Cookie", cookie.as_str()), ("Origin", origin.as_str())];
    let path = format!("{directory}proposals/{id}");
    let form = web.get(&format!("{path}/edit"), &[("Cookie", &cookie)])?.body;
    let token = hidden(&form, "token")?;
    let edit = "routes=-+host%3A+api.site.example%0D%0A++matches%3A+%5B%7Bmethods%3A+%5BGET%5D%7D%5D%0D%0A";
    let body = format!("token={token}&{edit}&scope=save:asks");
    let shown = web.send("POST", &format!("{path}/approve"), &headers, &body)?;
    // The manifest has a route for all hosts of the site, so the new route cannot be added to it.
    ensure!(shown.status == 422 && shown.body.contains("asks.md: line 7 has a route"), "{shown:?}");
    ensure!(asking::fetched(&home, "1")?.contains("403"), "nothing was approved yet");
    let body = format!("{body}&digest={}", hidden(&shown.body, "digest")?);
    let done = web.send("POST", &format!("{path}/approve"), &headers, &body)?;
    let after = web.get(&done.headers["location"], &[("Cookie", &cookie)])?;
    ensure!(done.status == 303 && after.body.contains("is live; cannot write"), "{after:?}");
    ensure!(after.body.contains("Add these lines to the file by hand"), "{after:?}");
    ensure!(after.body.contains("- host: api.site.example"), "{after:?}");
    ensure!(asking::fetched(&home, "1")?.contains("200"));
    let reply = asking::answer(asks)?.expect_code(0).stdout;
    ensure!(reply.contains("modified"), "{reply}");
    Ok(())
}

#[test]
fn the_list_is_filtered_by_its_address() -> Result<()> {
    let home = dashboard_home()?;
    let web = Web::start(&home)?;
    let (cookie, directory) = web.open()?;
    for (address, shown) in [
        ("", true),
        ("?q=ONE", true),
        ("?q=worker+running", true),
        ("?show=running", true),
        ("?q=two", false),
        ("?show=kept", false),
        ("?show=nothing&q=%3Cscript%3E", false),
    ] {
        let page = web.get(&format!("{directory}{address}"), &[("Cookie", &cookie)])?;
        ensure!(page.status == 200 && !page.body.contains("<script>"), "{address}: {page:?}");
        ensure!(page.body.contains("id=\"b-one\"") == shown, "{address}: {page:?}");
        ensure!(shown || page.body.contains("No bottle matches the filter"), "{address}: {page:?}");
    }
    Ok(())
}

#[test]
fn a_budget_is_approved_without_a_reason() -> Result<()> {
    let home = dashboard_home()?;
    let budget = r#"{"id": "00000000-0000-4000-8000-000000000000", "bottle_slug": "one", "tool": "budget-add",
        "proposed_file": "{\"scope\": \"bottle:dev\"}", "justification": "the budget is spent",
        "arrival_timestamp": "2026-01-01T00:00:00Z", "expires_at": "2099-01-02T00:00:00Z"}"#;
    let _asker = propose(&home, budget)?;
    let web = Web::start(&home)?;
    let (cookie, directory) = web.open()?;
    let proposal = format!("{directory}proposals/00000000-0000-4000-8000-000000000000");
    let page = web.get(&proposal, &[("Cookie", &cookie)])?.body;
    for text in ["one has spent its budget", ">Reason</h2>", ">Budget</h2>", "The budget is raised"] {
        ensure!(page.contains(text), "{text}: {page}");
    }
    let form = web.get(&format!("{proposal}/approve"), &[("Cookie", &cookie)])?.body;
    ensure!(!form.contains("name=\"reason\"") && !form.contains("name=\"scope\""), "{form}");
    let reject = web.get(&format!("{proposal}/reject"), &[("Cookie", &cookie)])?.body;
    ensure!(reject.contains("name=\"reason\""), "{reject}");
    Ok(())
}

#[test]
fn texts_of_bottles_are_escaped() -> Result<()> {
    let home = dashboard_home()?;
    let hostile = r"<script>alert(1)</script> \u001b[2J \u202e";
    let text = format!(
        r#"{{"id": "00000000-0000-4000-8000-000000000000", "bottle_slug": "one", "tool": "egress-allow",
        "proposed_file": "{hostile}", "justification": "{hostile}",
        "arrival_timestamp": "2026-01-01T00:00:00Z", "expires_at": "2099-01-02T00:00:00Z"}}"#
    );
    home.write("home/.bottle/queue/one/processed/none", "")?;
    let file = "home/.bottle/queue/one/00000000-0000-4000-8000-000000000000.proposal.json";
    home.write(file, &text)?;
    let web = Web::start(&home)?;
    let (cookie, directory) = web.open()?;
    for path in ["proposals", "proposals/00000000-0000-4000-8000-000000000000"] {
        let page = web.get(&format!("{directory}{path}"), &[("Cookie", &cookie)])?.body;
        ensure!(page.contains("&lt;script&gt;alert(1)"), "{page}");
        ensure!(
            !page.contains("<script>alert") && !page.contains('\u{1b}') && !page.contains('\u{202e}'),
            "{page}"
        );
    }
    Ok(())
}

/// Accessibility roles of elements that need a name.
const CONTROLS: [&str; 11] = [
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "radio",
    "checkbox",
    "navigation",
    "region",
    "image",
    "table",
];

/// Checks that every control has a name, and that the page has its landmarks and one main heading.
fn is_accessible(browser: &mut Browser) -> Result<()> {
    let nodes = browser.accessibility()?;
    for AccessibleNode { role, name } in &nodes {
        let needs = CONTROLS.contains(&role.as_str()) && role != "table";
        ensure!(!needs || !name.trim().is_empty(), "a {role} without a name: {nodes:?}");
    }
    for landmark in ["main", "banner", "navigation", "contentinfo", "heading"] {
        ensure!(nodes.iter().any(|node| node.role == landmark), "no {landmark}: {nodes:?}");
    }
    ensure!(browser.evaluate("document.querySelectorAll('h1').length")? == 1, "one main heading");
    ensure!(browser.evaluate("document.documentElement.lang")? == "en");
    let fits = browser.evaluate("document.documentElement.scrollWidth <= innerWidth")?;
    ensure!(fits == true, "the page does not scroll sideways");
    low_contrast(browser)
}

/// Checks that every text has a contrast of at least 4.5 to its background, as WCAG AA requires.
fn low_contrast(browser: &mut Browser) -> Result<()> {
    let found = browser.evaluate(
        "(() => { const parse = (c) => c.match(/[\\d.]+/g).map(Number);
          const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
            return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
          const back = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] === 1) { return c; } } return [255, 255, 255]; };
          const bad = [];
          for (const e of document.querySelectorAll('body *')) {
            const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
            if (!own || !e.checkVisibility() || e.matches('.skip')) { continue; }
            const [a, b] = [light(parse(getComputedStyle(e).color)), light(back(e))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            if (ratio < 4.5) { bad.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`); }
          } return bad.join('; '); })()",
    )?;
    ensure!(found == "", "low contrast: {found}");
    Ok(())
}

/// Writes a screenshot of the page, if [`SCREENSHOTS`] is set.
fn picture(browser: &mut Browser, name: &str) -> Result<()> {
    if let Some(directory) = std::env::var_os(SCREENSHOTS) {
        let path = std::path::Path::new(&directory).join(format!("{name}.png"));
        std::fs::write(path, browser.screenshot()?)?;
    }
    Ok(())
}

fn browser(test: &str) -> Result<Option<Browser>> {
    match Browser::installed() {
        Some(program) => Ok(Some(Browser::start(&program)?)),
        None => {
            skip::aloud(test, &"chromium is not installed");
            Ok(None)
        }
    }
}

/// Opens the dashboard, and returns the URL of its pages.
fn pages_of(browser: &mut Browser, web: &Web) -> Result<String> {
    browser.open(&web.url())?;
    browser.wait_for_text("This page is up to date")?;
    Ok(browser.evaluate("location.href")?.as_str().context("an address")?.to_owned())
}

/// Opens pages in both colour schemes, on a wide and on a narrow screen.
fn look_at(browser: &mut Browser, directory: &str, pages: &[(&str, &str)]) -> Result<()> {
    for (dark, scheme) in [(false, "light"), (true, "dark")] {
        for (name, path) in pages {
            browser.look(dark, 1200, 800)?;
            browser.open(&format!("{directory}{path}"))?;
            is_accessible(browser).with_context(|| format!("{name}, {scheme}"))?;
            picture(browser, &format!("{name}-{scheme}"))?;
            browser.look(dark, 390, 800)?;
            is_accessible(browser).with_context(|| format!("{name}, {scheme}, narrow"))?;
            picture(browser, &format!("{name}-{scheme}-narrow"))?;
        }
    }
    Ok(())
}

#[test]
fn every_page_is_accessible_in_light_and_dark() -> Result<()> {
    let Some(mut browser) = browser("every_page_is_accessible_in_light_and_dark")? else { return Ok(()) };
    let empty = TestHome::new()?;
    let nothing = Web::start(&empty)?;
    let directory = pages_of(&mut browser, &nothing)?;
    look_at(
        &mut browser,
        &directory,
        &[("empty", ""), ("empty-usage", "usage"), ("empty-proposals", "proposals")],
    )?;
    let home = dashboard_home()?;
    let _asker = propose(&home, PROPOSAL)?;
    let web = Web::start(&home)?;
    let directory = pages_of(&mut browser, &web)?;
    let proposal = "proposals/00000000-0000-4000-8000-000000000000";
    let pages = [
        ("list", ""),
        ("detail", "bottles/one"),
        ("stop", "bottles/one/stop"),
        ("kill", "bottles/one/kill"),
        ("raise", "bottles/one/raise?scope=bottle%3Adev&provider=llm.example&window=day"),
        ("limit", "bottles/one/raise?scope=bottle%3Adev&provider=llm.example&window=day&tokens=80000"),
        ("filtered", "?q=no+bottle"),
        ("usage", "usage?by=bottle"),
        ("proposals", "proposals"),
        ("proposal", proposal),
        ("approve", &format!("{proposal}/approve")),
        ("edit", &format!("{proposal}/edit")),
        ("reject", &format!("{proposal}/reject")),
    ];
    look_at(&mut browser, &directory, &pages)?;
    let background = browser.evaluate("getComputedStyle(document.body).backgroundColor")?;
    ensure!(background == "rgb(20, 24, 27)", "{background}");
    let _ = run(&home, &["budget", "stop", "one", "--policy", "pause"])?.expect_code(0);
    look_at(&mut browser, &directory, &[("list-paused", ""), ("detail-paused", "bottles/one")])?;
    // The one-time link was used before, so it is refused even in this browser.
    browser.open(&web.url())?;
    browser.wait_for_text("This link was used before")?;
    picture(&mut browser, "refused-dark")?;
    Ok(())
}

#[test]
fn the_keyboard_alone_is_enough() -> Result<()> {
    let Some(mut browser) = browser("the_keyboard_alone_is_enough")? else { return Ok(()) };
    let home = dashboard_home()?;
    let web = Web::start(&home)?;
    browser.look(false, 1200, 800)?;
    browser.open(&web.url())?;
    browser.wait_for_text("This page is up to date")?;
    // When the page is updated, it keeps the focus.
    browser.tab_to("#b-one")?;
    let _asker = propose(&home, PROPOSAL)?;
    browser.wait_for_text("1 question")?;
    browser.wait_for("document.getElementById('notice').textContent.includes('1 proposal waits')")?;
    ensure!(browser.evaluate("document.activeElement.id")? == "b-one", "the focus stays");
    browser.press("Enter")?;
    browser.wait_for_text("Budgets")?;
    browser.tab_to("#raise-0")?;
    browser.press("Enter")?;
    browser.wait_for_text("Tokens to add")?;
    browser.wait_for("document.activeElement.id === 'tokens'")?;
    for digit in ["8", "0", "0", "0", "0"] {
        browser.press(digit)?;
    }
    browser.press("Enter")?;
    browser.wait_for_text("The limit becomes 100,000 tokens")?;
    browser.tab_to("button")?;
    browser.press("Enter")?;
    browser.wait_for_text("the limit is now 100,000 tokens")?;
    for (button, question, result) in
        [("#a-pause", "Pause one?", "one is paused"), ("#a-continue", "Continue one?", "one goes on")]
    {
        browser.tab_to(button)?;
        browser.press("Enter")?;
        browser.wait_for_text(question)?;
        browser.tab_to("button")?;
        browser.press("Enter")?;
        browser.wait_for_text(result)?;
    }
    browser.tab_to("#a-stop")?;
    browser.press("Enter")?;
    browser.wait_for_text("Stop one?")?;
    browser.tab_to("button")?;
    browser.press("Enter")?;
    browser.wait_for_text("one has ended")?;
    picture(&mut browser, "ended-light")?;
    let active = run(&home, &["list", "--json"])?.json()?;
    ensure!(
        active.as_array().is_some_and(|all| all.iter().all(|one| one["status"] != "running")),
        "{active}"
    );
    Ok(())
}
