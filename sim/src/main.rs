//! Placeholder.
fn main() {
    for config in if std::env::args().len() > 1 { leasehold_sim::ci() } else { leasehold_sim::small() } {
        match leasehold_sim::check(&config, 2) {
            Ok(report) => {
                println!(
                    "{} {} states {} steps depth {} in {:?}",
                    report.config, report.unique_states, report.steps, report.depth, report.took
                );
                for f in &report.failures {
                    println!("{}\n{}\n{}", f.promise.name(), f.story, f.replay);
                }
                for (s, t) in &report.sightings {
                    println!("   {t:>9} {}", s.name());
                }
            }
            Err(e) => println!("{e}"),
        }
    }
}
