"""One recipe for policies: any base or none, any course, supervised fine-tuning until a held-out share is reached."""
