//! Fences in the store on the page of the lease that moves them.

use crate::scene::{MINUTE, acquire, holder, name, seal};
use crate::stage::{Client, Stage};
use leasehold_core::guard::HighWater;
use leasehold_core::{Epoch, FencedWrite, Grant, Lineage, Outcome, Who, Why};
use leasehold_guards::stored::Adoption;
use leasehold_server::page::budget;

fn high(grant: &Grant, seq: u64) -> HighWater {
    HighWater::of(grant.token(), seq)
}

/// The row of a fence.
fn row<'a>(page: &'a str, resource: &str) -> &'a str {
    let row = page.split(&format!("id=\"f-{resource}\"")).nth(1).unwrap_or_else(|| panic!("no {resource}: {page}"));
    row.split("</tr>").next().unwrap()
}

#[tokio::test]
async fn a_lease_shows_the_high_water_of_its_fences_and_marks_one_above_it() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let first = acquire(&leases, "publish", holder("box-1", "a", 1), "1h").await;
    seal(&stage, "api/report", high(&first, 4), Vec::new()).await;
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    let second = acquire(&leases, "publish", holder("box-2", "b", 2), "1h").await;
    seal(&stage, "http/billing", high(&second, 0), Vec::new()).await;
    seal(&stage, "mcp/tools", high(&second, 7), Vec::new()).await;
    let above = HighWater { epoch: Epoch::new(9).unwrap(), ..high(&second, 1) };
    seal(&stage, "http/restored", above, Vec::new()).await;
    let foreign = HighWater { lineage: Lineage::random(), ..high(&second, 1) };
    seal(&stage, "http/recreated", foreign, Vec::new()).await;
    // Another lease's, and one that this lease has given away.
    let other = acquire(&leases, "other", holder("box-3", "c", 3), "1h").await;
    seal(&stage, "api/others", high(&other, 1), Vec::new()).await;
    let (by, why) = (Who::new("ada").unwrap(), Why::new("moved").unwrap());
    seal(&stage, "api/given", high(&other, 1), vec![Adoption::new(&high(&first, 1), &by, &why)]).await;

    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/lease/publish").await.body;
    for (resource, epoch, says, is_marked) in [
        ("api:report", 1, "refuses epochs below 1", false),
        ("http:billing", 2, "sealed at the lease&#39;s epoch", false),
        ("mcp:tools", 2, "at the lease&#39;s epoch", false),
        ("http:restored", 9, "has seen epoch 9", true),
        ("http:recreated", 2, "has a lease of that name with lineage", true),
        ("api:given", 1, "given to lease `other`", false),
    ] {
        let row = row(&page, resource);
        assert!(row.contains(&format!("class=\"num\">{epoch}<")) && row.contains(says), "{resource}: {row}");
        assert_eq!(row.contains("store regressed</span>"), is_marked, "{resource}: {row}");
    }
    assert!(!page.contains("f-api:others"), "{page}");
    assert!(!page.contains(&second.token().nonce.to_string()), "the holder's nonce is shown");
    assert!(client.get("/ns/default/lease/other").await.body.contains("f-api:others"));
}

#[tokio::test]
async fn a_key_sees_the_fences_of_resources_that_it_is_for() {
    let stage = Stage::start().await;
    let grant = acquire(&stage.leases(), "team-b/publish", holder("box-1", "a", 1), "1h").await;
    seal(&stage, "api/team-a/secret", high(&grant, 1), Vec::new()).await;
    seal(&stage, "api/team-b/report", high(&grant, 1), Vec::new()).await;
    let mut client = Client::signed_in(&stage, &stage.key("b", "read", &["team-b/*"], None).await).await;
    let page = client.get("/ns/default/lease/team-b/publish").await.body;
    assert!(page.contains("f-api:team-b/report") && !page.contains("team-a/secret"), "{page}");
}

#[tokio::test]
async fn of_many_fences_a_bounded_number_is_looked_at_and_the_page_says_so() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let (mine, other) = (
        acquire(&leases, "mine", holder("b", "a", 1), "1h").await,
        acquire(&leases, "o", holder("b", "a", 2), "1h").await,
    );
    for n in 0..budget::FENCES {
        seal(&stage, &format!("api/r{n:04}"), high(&other, 1), Vec::new()).await;
    }
    seal(&stage, "http/last", high(&mine, 1), Vec::new()).await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/lease/mine").await.body;
    assert!(
        !page.contains("f-http:last") && page.contains("As 250 fences of this namespace tell; there are more."),
        "{page}"
    );
    let next = page.split("href=\"").find(|part| part.contains("after=")).unwrap().split('"').next().unwrap();
    assert!(!next.contains("api"), "it tells a name that the reader may not know: {next}");
    let page = client.get(next.trim_end_matches("#fences")).await.body;
    assert!(page.contains("f-http:last") && !page.contains("Look further"), "{page}");
}

/// The row of a refused write.
fn refused<'a>(page: &'a str, resource: &str) -> Option<&'a str> {
    let section = page.split("id=\"refused\"").nth(1)?.split("</section>").next()?;
    section.split("<tr ").find(|row| row.contains(&format!(">{resource}<")))
}

#[tokio::test]
async fn the_timeline_marks_where_stale_writes_were_refused() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let first = acquire(&leases, "publish", holder("box-1", "a", 1), "1h").await;
    stage.clock.advance(MINUTE * 10);
    leases.release(&first, Outcome::Succeeded).await.unwrap();
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    let page = client.get("/ns/default/lease/publish").await.body;
    assert!(
        !page.contains("id=\"refused\"") && !page.contains("path class=\"refused\"") && !page.contains("write refused")
    );
    let second = acquire(&leases, "publish", holder("box-2", "b", 2), "1h").await;
    let (old, new) = (first.token().epoch, second.token().epoch);
    let hostile = "<b>ada</b>@box-1";
    let write = FencedWrite::new("file:out.json", old, new, Some(Who::new(hostile).unwrap()));
    for _ in 0..2 {
        stage.clock.advance(MINUTE * 5);
        leases.count_fenced(&name("publish"), &write).await.unwrap();
    }
    leases.count_fenced(&name("publish"), &FencedWrite::new("api:report", old, new, None)).await.unwrap();
    let page = client.get("/ns/default/lease/publish").await.body;
    let row = refused(&page, "file:out.json").unwrap_or_else(|| panic!("{page}"));
    for says in ["2 times", "&#60;b&#62;ada&#60;/b&#62;@box-1", "class=\"num\">1<", "class=\"num\">2<"] {
        assert!(row.contains(says), "{says}: {row}");
    }
    assert!(refused(&page, "api:report").unwrap().contains("not known"));
    let drawing = page.split("<figure").nth(1).unwrap().split("</figure>").next().unwrap();
    let title =
        "write of epoch 1 to file:out.json by &#60;b&#62;ada&#60;/b&#62;@box-1 refused, 2 times: epoch 2 was there";
    assert!(drawing.contains("epoch 1: a (box-1, pid 1), 10m, succeeded; why: first holder ("), "{drawing}");
    assert!(drawing.contains("epoch 2: b (box-2, pid 2), 10m, held; why: free after a release ("), "{drawing}");
    assert!(drawing.contains(title) && drawing.contains("</i>a stale write was refused"), "{drawing}");
    assert_eq!(drawing.matches("<path class=\"refused\"").count(), 2);
    assert!(drawing.contains("2 tenures, 2 refused writes, from"), "{drawing}");
}

#[tokio::test]
async fn a_key_sees_refusals_of_its_leases_at_resources_that_it_is_for() {
    let stage = Stage::start().await;
    let leases = stage.leases();
    let grant = acquire(&leases, "team-b/publish", holder("box-1", "a", 1), "1h").await;
    for resource in ["api:team-a/secret", "api:team-b/report", "file:out.json"] {
        let write = FencedWrite::new(resource, grant.token().epoch, Epoch::new(9).unwrap(), None);
        leases.count_fenced(&name("team-b/publish"), &write).await.unwrap();
    }
    let mut client = Client::signed_in(&stage, &stage.key("b", "read", &["team-b/*"], None).await).await;
    let page = client.get("/ns/default/lease/team-b/publish").await.body;
    assert!(refused(&page, "api:team-b/report").is_some() && refused(&page, "file:out.json").is_some(), "{page}");
    assert!(!page.contains("team-a/secret"), "{page}");
    let mut other = Client::signed_in(&stage, &stage.key("a", "read", &["team-a/*"], None).await).await;
    assert_eq!(other.get("/ns/default/lease/team-b/publish").await.status, 403);
}
