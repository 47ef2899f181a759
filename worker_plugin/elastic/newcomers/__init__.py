"""How newcomers to an elastic job get the training and catch up while the others continue to train."""
