//! Fences in the store on the page of the lease that moves them.

use crate::scene::{acquire, holder, seal};
use crate::stage::{Client, Stage};
use leasehold_core::guard::HighWater;
use leasehold_core::{Epoch, Grant, Lineage, Outcome, Who, Why};
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
